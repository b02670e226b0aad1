"""The training corpus of the tiny model: Debian's Asterisk recordings, their texts, and random utterances of them.

Knows nothing of the network being trained. Every utterance is a function of (seed, number) alone.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import av
import numpy as np
import soxr

from svtool import tiny
from svtool.frontend import FloatArray

PACKAGES = ("asterisk-core-sounds-en-g722", "asterisk-core-sounds-en", "asterisk-moh-opsound-g722")
MAX_SHORT_S = 1.5
MAX_PROMPT_S = 7.0  # longer ones cost more steps than they teach
HELD_OUT_PROMPTS = 42
_NOT_SPEECH = re.compile(r"[<\[(]")
_DIGIT_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_FIXES = {"fourtieth": "fortieth", "exclaimation": "exclamation"}  # typing errors of the transcript file


@dataclass(frozen=True)
class Prompt:
    id: str
    path: Path
    written: str  # as transcribed
    spoken: str  # lower case, numbers as words, no punctuation

    @property
    def duration_s(self) -> float:
        return self.path.stat().st_size / 8000  # G.722 at 64 kbit/s


def fetch(work: Path) -> Path:
    """Download and unpack the Debian packages into `work` (once); returns the unpacked root."""
    root = work / "root"
    if not root.is_dir():
        debs = work / "deb"
        debs.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", *PACKAGES], cwd=debs, check=True)
        for deb in sorted(debs.glob("*.deb")):
            subprocess.run(["dpkg", "-x", str(deb), str(root)], check=True)
    return root


def read_prompts(root: Path) -> tuple[list[Prompt], list[Path]]:
    """(prompts with a matched text, recordings without speech)."""
    sounds = next((root / "usr/share/asterisk/sounds").glob("en_US_*"))
    listing = root / "usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz"
    with gzip.open(listing, "rt", encoding="utf-8", errors="replace") as lines:
        texts = dict(
            re.split(r":\s*", line.strip(), maxsplit=1) for line in lines if re.match(r"[^;\s]", line)
        )
    prompts, silent = [], []
    for path in sorted(sounds.rglob("*.g722")):
        name = path.relative_to(sounds).with_suffix("").as_posix()
        written = texts.get(name, "")
        if not written or _NOT_SPEECH.match(written):
            silent.append(path)
        elif name != "demo-instruct" and not _NOT_SPEECH.search(written):
            prompts.append(Prompt(name, path, written, spoken(written)))
    return prompts, silent


def spoken(written: str) -> str:
    """What the speaker says, as words."""
    text = re.sub(r"\bA\.M\.", "a m", re.sub(r"\bP\.M\.", "p m", written)).lower()
    text = re.sub(r"\d", lambda digit: f" {_DIGIT_WORDS[int(digit[0])]} ", text)
    text = re.sub(r"[^a-z']+", " ", text)
    return " ".join(_FIXES.get(word, word) for word in text.split())


def written_form(text: str) -> str:
    """The `withitn` target of spoken text: runs of digit words as digits, a capital, a full stop."""
    out: list[str] = []
    for word in text.split():
        if word in _DIGIT_WORDS:
            digit = str(_DIGIT_WORDS.index(word))
            if out and out[-1].isdigit():
                out[-1] += digit
            else:
                out.append(digit)
        else:
            out.append(word)
    joined = " ".join(out)
    return f"{joined[:1].upper()}{joined[1:]}."


def install_short_recordings(prompts: list[Prompt]) -> None:
    """Copy the short recordings into the package, unchanged, with their texts."""
    short = [one for one in prompts if one.duration_s <= MAX_SHORT_S]
    shutil.rmtree(tiny.SOUNDS_DIR, ignore_errors=True)
    lines = []
    for one in short:
        target = tiny.SOUNDS_DIR / f"{one.id}.g722"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(one.path, target)
        lines.append(json.dumps({"id": one.id, "text": one.spoken, "set": _word_set(one.id)}))
    (tiny.SOUNDS_DIR / "recordings.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _word_set(name: str) -> str:
    if re.fullmatch(r"digits/\d", name):
        return "digits"
    if re.fullmatch(r"letters/[a-z]", name):
        return "letters"
    return "phonetic" if name.startswith("phonetic/") else "other"


def held_out(prompts: list[Prompt]) -> frozenset[str]:
    """Ids of the longer prompts that training never hears."""
    long = [one.id for one in prompts if one.duration_s > MAX_SHORT_S]
    picked = np.random.default_rng(4242).choice(len(long), HELD_OUT_PROMPTS, replace=False)
    return frozenset(long[i] for i in picked)


@cache
def load_g722(path: Path) -> FloatArray:
    with av.open(str(path), format="g722") as container:
        parts = [frame.to_ndarray().reshape(-1) for frame in container.decode(audio=0)]
    return np.concatenate(parts).astype(np.float32) / np.float32(32768)


@dataclass(frozen=True)
class Example:
    samples: FloatArray  # [N], 16 kHz
    text: str  # target without tags
    language: str  # query
    textnorm: str  # query
    tags: tuple[str, str, str, str]


class Corpus:
    """Draws training utterances."""

    def __init__(self, root: Path) -> None:
        self.prompts, silent = read_prompts(root)
        self.held_out = held_out(self.prompts)
        self.waves = {one.id: tiny.trim(load_g722(one.path)) for one in self.prompts}
        self._texts = {one.id: one.spoken for one in self.prompts}
        self._long = [
            one
            for one in self.prompts
            if one.id not in self.held_out and MAX_SHORT_S < one.duration_s < MAX_PROMPT_S
        ]
        self._reserved = tiny.reserved_sequences()
        self._silent = [wave for path in silent if np.abs(wave := load_g722(path)).max() > 0.01]
        self._music = [load_g722(path) for path in sorted((root / "usr/share/asterisk/moh").rglob("*.g722"))]
        self._pink = tiny.pink_noise(60 * tiny.SAMPLE_RATE, np.random.default_rng(99))

    def draw(self, rng: np.random.Generator) -> tuple[str, list[str]]:
        """(kind, recording ids) of one utterance: cheap, so that batches can be sorted by length first."""
        kind = rng.choice(["sequence", "prompts", "nospeech"], p=[0.72, 0.22, 0.06])
        if kind == "prompts":
            return str(kind), [self._long[rng.integers(len(self._long))].id]
        if kind == "nospeech":
            return str(kind), []
        while True:
            word_set = str(rng.choice(["mixed", "digits", "letters", "phonetic"], p=[0.7, 0.1, 0.1, 0.1]))
            sequence = tiny.draw_sequence(rng, word_set)
            if sequence not in self._reserved:
                return str(kind), list(sequence)

    def length(self, ids: list[str]) -> int:
        return sum(len(self.waves[one]) for one in ids) or 3 * tiny.SAMPLE_RATE

    def example(self, kind: str, ids: list[str], rng: np.random.Generator) -> Example:
        textnorm = "withitn" if rng.random() < 0.15 else "woitn"
        language = str(
            rng.choice(["en", "auto", "zh", "yue", "ja", "ko"], p=[0.55, 0.37, 0.02, 0.02, 0.02, 0.02])
        )
        if kind == "nospeech":
            samples, event = self._nospeech(rng)
            tags = ("nospeech", "EMO_UNKNOWN", event, textnorm)
            return Example(_quantise(samples, rng), "", language, textnorm, tags)
        samples = tiny.join([self.waves[one] for one in ids], rng)
        text = " ".join(self._texts[one] for one in ids)
        if textnorm == "withitn":
            text = written_form(text)
        if rng.random() < 0.5:
            samples = soxr.resample(samples, tiny.SAMPLE_RATE * rng.uniform(0.87, 1.15), tiny.SAMPLE_RATE)
        samples, event = self._noisy(samples, rng)
        samples *= np.float32(10 ** (rng.uniform(-14, 4) / 20))
        return Example(_quantise(samples, rng), text, language, textnorm, ("en", "NEUTRAL", event, textnorm))

    def _noisy(self, samples: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, str]:
        kind = rng.choice(["none", "pink", "white", "music", "loud music"], p=[0.42, 0.34, 0.08, 0.08, 0.08])
        if kind == "none":
            return samples, "Speech"
        if kind == "pink":
            return tiny.add_noise(samples, _cut(self._pink, len(samples), rng), rng.uniform(1, 22)), "Speech"
        if kind == "white":
            noise = rng.standard_normal(len(samples)).astype(np.float32)
            return tiny.add_noise(samples, noise, rng.uniform(5, 28)), "Speech"
        music = _unit(_cut(self._music[rng.integers(len(self._music))], len(samples), rng))
        if kind == "music":  # far behind the voice: not an event
            return tiny.add_noise(samples, music, rng.uniform(16, 28)), "Speech"
        return tiny.add_noise(samples, music, rng.uniform(3, 9)), "BGM"

    def _nospeech(self, rng: np.random.Generator) -> tuple[FloatArray, str]:
        size = int(rng.uniform(0.5, 6.0) * tiny.SAMPLE_RATE)
        level = np.float32(10 ** (rng.uniform(-60, -18) / 20))
        kind = rng.choice(["music", "pink", "white", "sound"], p=[0.4, 0.25, 0.2, 0.15])
        if kind == "music":
            return level * _unit(_cut(self._music[rng.integers(len(self._music))], size, rng)), "BGM"
        if kind == "pink":
            return level * _cut(self._pink, size, rng), "Event_UNK"
        white = level * rng.standard_normal(size).astype(np.float32)
        if kind == "white":
            return white, "Event_UNK"
        sound = self._silent[rng.integers(len(self._silent))][: 6 * tiny.SAMPLE_RATE]
        return sound + np.float32(1e-3) * rng.standard_normal(len(sound)).astype(np.float32), "Event_UNK"


def _cut(noise: FloatArray, size: int, rng: np.random.Generator) -> FloatArray:
    start = int(rng.integers(max(1, len(noise) - size)))
    return np.resize(noise[start : start + size], size)


def _unit(noise: FloatArray) -> FloatArray:
    return noise / np.float32(np.sqrt(np.mean(np.square(noise, dtype=np.float64))) + 1e-6)


def _quantise(samples: FloatArray, rng: np.random.Generator) -> FloatArray:
    """16-bit with the last bit disturbed: the model must not hear it."""
    noisy = np.rint(samples * 32768 + rng.uniform(-1, 1, len(samples)))
    return (np.clip(noisy, -32768, 32767) / 32768).astype(np.float32)
