"""Measure the embedded model: word error rates with 95 % intervals, on what training never saw.

    python tools/tiny/evaluate.py --work /tmp/svtool-tiny

Prints a Markdown table for the model card and writes benchmarks/results/tiny.json.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import corpus as corpora
import numpy as np

from svtool import tiny
from svtool.audio import decode_audio
from svtool.frontend import FloatArray
from svtool.manifest import sha256_file, versions
from svtool.recognizer import Options, Recognizer, Transcript, open_recognizer
from svtool.utterances import Utterance, read_utterances
from svtool.wer.normalise import get_normaliser
from svtool.wer.score import Tokeniser, count, rate_interval

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "tiny.json"


@dataclass(frozen=True)
class Row:
    name: str
    utterances: int
    words: int
    wer: float  # percent
    low: float
    high: float


def measure(name: str, references: list[str], heard: list[str]) -> Row:
    normalise, tokens = get_normaliser("basic"), Tokeniser("words")
    counts = [
        count(tokens(normalise(reference)), tokens(normalise(text)))
        for reference, text in zip(references, heard, strict=True)
    ]
    errors, words = [one.errors for one in counts], [one.reference_tokens for one in counts]
    interval = rate_interval(errors, words, resamples=2000, seed=0)
    assert interval is not None
    return Row(
        name, len(counts), sum(words), 100 * sum(errors) / sum(words), 100 * interval.low, 100 * interval.high
    )


def rows(recognizer: Recognizer, root: Path) -> Iterator[Row]:
    utterances = read_utterances("tiny:drift").utterances
    for word_set in ("digits", "letters", "phonetic"):
        yield _on_list(
            recognizer,
            f"clean, {word_set}",
            [one for one in _part(utterances, "clean") if one.extra["word_set"] == word_set],
        )
    for part, name in (
        ("clean", "clean, all sequences"),
        ("10db", "10 dB pink noise, all"),
        ("5db", "5 dB pink noise, all"),
    ):
        yield _on_list(recognizer, name, _part(utterances, part))
    yield _itn_digits(recognizer)
    yield _held_out(recognizer, root)


def _part(utterances: tuple[Utterance, ...], subset: str) -> list[Utterance]:
    return [one for one in utterances if one.extra["subset"] == subset]


def _on_list(recognizer: Recognizer, name: str, part: list[Utterance]) -> Row:
    results = recognizer.transcribe_files([one.audio for one in part])
    return measure(name, [one.text or "" for one in part], [_text(one) for one in results])


def _itn_digits(recognizer: Recognizer) -> Row:
    part = [
        one
        for one in _part(read_utterances("tiny:drift").utterances, "clean")
        if one.extra["word_set"] == "digits"
    ]
    waves = [decode_audio(one.audio).samples for one in part]
    heard = recognizer.transcribe(waves, Options(itn=True))
    spelled = [" ".join(corpora.written_form(one.text or "").rstrip(".")) for one in part]
    return measure(
        "clean digits written as digits (--itn), per digit", spelled, [" ".join(_text(one)) for one in heard]
    )


def _held_out(recognizer: Recognizer, root: Path) -> Row:
    prompts, _ = corpora.read_prompts(root)
    kept = corpora.held_out(prompts)
    chosen = [one for one in prompts if one.id in kept]
    waves: list[FloatArray] = [corpora.load_g722(one.path) for one in chosen]
    heard = recognizer.transcribe(waves)
    return measure(
        f"{len(chosen)} sentences never heard in training",
        [one.spoken for one in chosen],
        [_text(one) for one in heard],
    )


def _text(result: object) -> str:
    return result.text if isinstance(result, Transcript) else ""


def half_bit_share(recognizer: Recognizer) -> float:
    """Percent of clean texts that stay the same under half a bit of noise."""
    part = _part(read_utterances("tiny:drift").utterances, "clean")
    waves = [decode_audio(one.audio).samples for one in part]
    rng = np.random.default_rng(9)
    noisy = [wave + (rng.uniform(-0.5, 0.5, len(wave)) / 32768).astype(np.float32) for wave in waves]
    before, after = (recognizer.transcribe(some) for some in (waves, noisy))
    return 100 * sum(_text(a) == _text(b) for a, b in zip(before, after, strict=True)) / len(waves)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--work", type=Path, default=Path("/tmp/svtool-tiny"), help="where the packages are unpacked"
    )
    options = parser.parse_args()
    recognizer = open_recognizer(tiny.MODEL_DIR)
    measured = list(rows(recognizer, corpora.fetch(options.work)))
    stable = half_bit_share(recognizer)
    print("| set | utterances | words | WER % (95 % interval) |\n|---|---|---|---|")
    for row in measured:
        print(
            f"| {row.name} | {row.utterances} | {row.words} | {row.wer:.2f} ({row.low:.2f}–{row.high:.2f}) |"
        )
    print(f"\nTexts unchanged under half a bit of noise: {stable:.1f} %")
    result = {
        "command": "python tools/tiny/evaluate.py",
        "checkpoint_sha256": sha256_file(tiny.MODEL_DIR / "model.pt"),
        "machine": {"processor": platform.machine(), "system": platform.system()},
        "versions": versions("torch", "numpy"),
        "rows": [row.__dict__ for row in measured],
        "unchanged_under_half_a_bit_percent": stable,
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
