"""The embedded model's files and its speech: 281 short recordings, and the utterance lists rendered from them.

`tiny:calibration` and `tiny:drift` are sequences of recordings drawn, joined and mixed with noise by seeded code,
offline, into a cache. Knows nothing of models or features.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import wave
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from svtool.errors import SvtoolError
from svtool.progress import Progress, Silent

FloatArray = npt.NDArray[np.float32]

MODEL_DIR = Path(__file__).parent / "tiny_model"
SOUNDS_DIR = MODEL_DIR / "sounds"
SAMPLE_RATE = 16_000
RENDER_VERSION = 1  # raise when rendering changes: the cache and every digest follow

_GAP_S = (0.06, 0.30)  # between two recordings
_EDGE_S = (0.10, 0.35)  # before the first and after the last
_FLOOR_DBFS = (-68.0, -60.0)  # white noise under everything: no digital zeros
_GAIN_DB = (-6.0, 3.0)


@dataclass(frozen=True)
class Recording:
    """One short recording: its file id, what is said (lower case, numbers as words), and its word set."""

    id: str
    text: str
    word_set: str  # "digits", "letters", "phonetic" or "other"


@dataclass(frozen=True)
class Subset:
    """A fixed part of a rendered list: how many utterances of each word set, at which noise level."""

    name: str
    seed: int
    counts: tuple[tuple[str, int], ...]
    snr_db: float | None  # pink noise; None = clean


_DRIFT_COUNTS = (("mixed", 440), ("digits", 120), ("letters", 120), ("phonetic", 120))
LISTS: dict[str, tuple[Subset, ...]] = {
    "calibration": (
        Subset("clean", 7001, (("mixed", 32), ("digits", 4), ("letters", 4), ("phonetic", 4)), None),
        Subset("10db", 7002, (("mixed", 30), ("digits", 4), ("letters", 4), ("phonetic", 4)), 10.0),
        Subset("5db", 7003, (("mixed", 30), ("digits", 4), ("letters", 4), ("phonetic", 4)), 5.0),
    ),
    "drift": (
        Subset("clean", 8001, _DRIFT_COUNTS, None),
        Subset("10db", 8002, _DRIFT_COUNTS, 10.0),
        Subset("5db", 8003, _DRIFT_COUNTS, 5.0),
    ),
}
_WORDS_PER_UTTERANCE = {"digits": (4, 10), "letters": (3, 8), "phonetic": (3, 7), "mixed": (3, 9)}


@lru_cache(maxsize=1)
def recordings() -> dict[str, Recording]:
    """All short recordings by id, in file order."""
    lines = (SOUNDS_DIR / "recordings.jsonl").read_text(encoding="utf-8").splitlines()
    found = (json.loads(line) for line in lines)
    return {entry["id"]: Recording(entry["id"], entry["text"], entry["set"]) for entry in found}


@lru_cache(maxsize=1)
def waveforms() -> dict[str, FloatArray]:
    """Samples f32 [N] of every recording, silent edges removed."""
    from svtool.audio import decode_audio

    return {name: trim(decode_audio(SOUNDS_DIR / f"{name}.g722").samples) for name in recordings()}


def trim(samples: FloatArray) -> FloatArray:
    """Cut the edges that lie 45 dB under the loudest 10 ms, leaving 40 ms on each side."""
    hop = SAMPLE_RATE // 100
    frames = samples[: len(samples) // hop * hop].reshape(-1, hop)
    level = np.sqrt(np.mean(np.square(frames, dtype=np.float64), axis=1))
    loud = np.flatnonzero(level > level.max() * 10 ** (-45 / 20))
    return samples[max(0, (loud[0] - 4) * hop) : (loud[-1] + 5) * hop].copy()


def draw_sequence(rng: np.random.Generator, word_set: str) -> tuple[str, ...]:
    """Ids of a random sequence of recordings of one word set (`mixed` = all of them)."""
    names = [one.id for one in recordings().values() if word_set in ("mixed", one.word_set)]
    low, high = _WORDS_PER_UTTERANCE[word_set]
    return tuple(names[i] for i in rng.integers(len(names), size=rng.integers(low, high + 1)))


def spoken_text(sequence: Sequence[str]) -> str:
    return " ".join(recordings()[name].text for name in sequence)


def join(parts: Sequence[FloatArray], rng: np.random.Generator) -> FloatArray:
    """One waveform of several, with random gaps and gain, over a noise floor."""
    gaps = rng.uniform(*_GAP_S, size=len(parts) - 1)
    edges = rng.uniform(*_EDGE_S, size=2)
    spaces = (np.array([edges[0], *gaps, edges[1]]) * SAMPLE_RATE).astype(int)
    total = int(spaces.sum()) + sum(len(part) for part in parts)
    floor = 10 ** (rng.uniform(*_FLOOR_DBFS) / 20)
    joined = (rng.standard_normal(total) * floor).astype(np.float32)
    gain = np.float32(10 ** (rng.uniform(*_GAIN_DB) / 20))
    at = 0
    for space, part in zip(spaces, parts, strict=False):
        at += int(space)
        joined[at : at + len(part)] += gain * part
        at += len(part)
    return joined


def pink_noise(samples: int, rng: np.random.Generator) -> FloatArray:
    """Noise f32 [samples] with power falling as 1/f above 20 Hz, unit RMS."""
    spectrum = np.fft.rfft(rng.standard_normal(samples))
    hertz = np.fft.rfftfreq(samples, 1 / SAMPLE_RATE)
    spectrum /= np.sqrt(np.maximum(hertz, 20.0))
    noise = np.fft.irfft(spectrum, samples)
    return np.asarray(noise / np.sqrt(np.mean(np.square(noise))), dtype=np.float32)


def add_noise(speech: FloatArray, noise: FloatArray, snr_db: float) -> FloatArray:
    """Speech plus unit-RMS noise at `snr_db` under the RMS of the whole utterance."""
    rms = float(np.sqrt(np.mean(np.square(speech, dtype=np.float64))))
    level = np.float32(rms * 10 ** (-snr_db / 20))
    return np.asarray(speech + level * noise, dtype=np.float32)


def to_int16(samples: FloatArray) -> npt.NDArray[np.int16]:
    """16-bit samples by rounding x * 32768 (truncation or 32767 would change what the tiny model hears)."""
    rounded = np.clip(np.rint(samples * 32768.0), -32768, 32767)
    return np.asarray(rounded, dtype=np.int16)


def sequences(name: str) -> Iterator[tuple[Subset, int, str, tuple[str, ...]]]:
    """Every utterance of a list as (subset, number, word set, sequence); never the same sequence twice."""
    seen: set[tuple[str, ...]] = set()
    for subset in LISTS[name]:
        rng = np.random.default_rng(subset.seed)
        number = 0
        for word_set, count in subset.counts:
            made = 0
            while made < count:
                sequence = draw_sequence(rng, word_set)
                if sequence in seen or (name == "drift" and sequence in _calibration_sequences()):
                    continue
                seen.add(sequence)
                yield subset, number, word_set, sequence
                made += 1
                number += 1


@lru_cache(maxsize=1)
def _calibration_sequences() -> frozenset[tuple[str, ...]]:
    return frozenset(sequence for _, _, _, sequence in sequences("calibration"))


def reserved_sequences() -> frozenset[tuple[str, ...]]:
    """Sequences that training must not use: all of calibration and drift."""
    return _calibration_sequences() | frozenset(sequence for _, _, _, sequence in sequences("drift"))


def hardest_part(data: str) -> tuple[str, str] | None:
    """Column and value of the part of an embedded list where quantization shows first; None for any other list."""
    return ("subset", "5db") if data == "tiny:drift" else None


def render(name: str, progress: Progress | None = None) -> Path:
    """The rendered list `calibration` or `drift`: path of its `list.jsonl` in the cache, made on first use."""
    if name not in LISTS:
        # like any other list that does not exist
        raise SvtoolError(
            f"no embedded list 'tiny:{name}': there are {', '.join(f'tiny:{one}' for one in LISTS)}"
        )
    folder = cache_dir() / "tiny" / f"{name}-{_render_digest()}"
    with _usable_cache():
        if not (folder / "list.jsonl").is_file():
            folder.parent.mkdir(parents=True, exist_ok=True)
            work = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
            try:
                _render_into(work, name, progress or Silent())
                _publish(work, folder)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return folder / "list.jsonl"


@contextmanager
def _usable_cache() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SvtoolError(
            f"svtool's cache folder {cache_dir()} cannot be used ({error.strerror or error}): "
            "name another one with SVTOOL_CACHE"
        ) from error


def render_named(spec: str, progress: Progress) -> None:
    """Render the list that `tiny:NAME` means, showing how far it is; other lists need no preparation."""
    if spec.startswith("tiny:"):
        render(spec.removeprefix("tiny:"), progress)


def _publish(work: Path, folder: Path) -> None:
    try:
        work.rename(folder)
    except OSError:
        # another process rendered the same list first; anything else is a real error
        if not (folder / "list.jsonl").is_file():
            raise


def _render_into(work: Path, name: str, progress: Progress) -> None:
    drawn = list(sequences(name))
    progress.stage(f"rendering tiny:{name}", total=len(drawn))
    lines = []
    for subset, number, word_set, sequence in drawn:
        label = f"{subset.name}-{number:04d}"
        samples = to_int16(_mix(subset, number, sequence))
        _write_wav(work / f"{label}.wav", samples)
        entry = {
            "id": label,
            "audio": f"{label}.wav",
            "text": spoken_text(sequence),
            "language": "en",
            "duration": round(len(samples) / SAMPLE_RATE, 3),
            "subset": subset.name,
            "word_set": word_set,
        }
        lines.append(json.dumps(entry, ensure_ascii=False))
        progress.advance()
    (work / "list.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _mix(subset: Subset, number: int, sequence: tuple[str, ...]) -> FloatArray:
    # a seed of its own for each utterance: any one can be rendered alone
    rng = np.random.default_rng([subset.seed, number])
    speech = join([waveforms()[one] for one in sequence], rng)
    if subset.snr_db is None:
        return speech
    return add_noise(speech, pink_noise(len(speech), rng), subset.snr_db)


def _write_wav(path: Path, samples: npt.NDArray[np.int16]) -> None:
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(SAMPLE_RATE)
        out.writeframes(samples.astype("<i2").tobytes())


@lru_cache(maxsize=1)
def _render_digest() -> str:
    digest = hashlib.sha256(f"{RENDER_VERSION} {LISTS!r}".encode())
    digest.update((SOUNDS_DIR / "recordings.jsonl").read_bytes())
    return digest.hexdigest()[:12]


def cache_dir() -> Path:
    """Where rendered lists are kept: $SVTOOL_CACHE, else $XDG_CACHE_HOME/svtool, else ~/.cache/svtool."""
    if own := os.environ.get("SVTOOL_CACHE"):
        return Path(own)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "svtool"
    try:
        return Path.home() / ".cache" / "svtool"
    except RuntimeError as error:  # a user without a home
        raise SvtoolError(
            "there is no home folder for svtool's cache folder: name one with SVTOOL_CACHE"
        ) from error
