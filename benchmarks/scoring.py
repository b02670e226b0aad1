"""How many utterances a second the scoring alone takes: three texts normalised, split into tokens, aligned and counted.

    python benchmarks/scoring.py [--utterances 20000]

One process, one thread, CPU time (so that other programs' turns on the core do not count). Texts are made up from a
seed: sentences of 5 to 20 words or 6 to 30 characters, one in five with a number; the baseline's text is the
reference without case and punctuation, and differs from it in three of ten utterances; the candidate's differs from the
baseline's in one of twenty. No reference comes twice, so that remembering helps only within an utterance. Then the
whole gate (scoring, bootstrap intervals, report) over the same texts. Writes benchmarks/results/scoring.json.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from svtool.utterances import Utterance
from svtool.wer.gate import Answer, GateOptions, Side, validate
from svtool.wer.groups import Scorer
from svtool.wer.normalise import get_normaliser
from svtool.wer.score import Tokeniser

RESULTS = Path(__file__).parent / "results" / "scoring.json"
# fmt: off
WORDS = [
    "the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "you", "he", "with", "as", "his", "they",
    "from", "or", "had", "by", "hot", "some", "what", "there", "other", "were", "your", "when", "word", "how", "said",
]
# fmt: on
CHARACTERS = "今天气很好我们一起去公园散步吧他说这个问题非常重要需要大家共同努力才能解决"
ROWS = (("basic", "en"), ("basic", "zh"), ("basic", "en+zh"), ("none", "en+zh"))
HEAVY_ROWS = (("english", "en"), ("chinese", "zh"), ("chinese-simplified", "zh"), ("auto", "en+zh"))

Triple = tuple[Utterance, Answer, Answer]


def triples(languages: str, number: int) -> Iterator[Triple]:
    generator = random.Random(languages)
    for index in range(number):
        language = generator.choice(languages.split("+"))
        spoken = _sentence(language, index, generator)
        end = "." if language == "en" else "。"
        baseline = _changed(spoken, generator) if generator.random() < 0.3 else spoken
        candidate = _changed(baseline, generator) if generator.random() < 0.05 else baseline
        reference = spoken.capitalize() + end
        utterance = Utterance(f"u{index}", Path("u.wav"), reference, language, None, (), 4.0, {})
        yield utterance, Answer(baseline), Answer(candidate)


def _sentence(language: str, index: int, generator: random.Random) -> str:
    if language == "en":
        words = [generator.choice(WORDS) for _ in range(generator.randint(5, 20))]
        return " ".join([*words, f"{index} dollars"] if index % 5 == 0 else words)
    text = "".join(generator.choice(CHARACTERS) for _ in range(generator.randint(6, 30)))
    return f"{text}{index}元" if index % 5 == 0 else text


def _changed(text: str, generator: random.Random) -> str:
    at = generator.randrange(len(text))
    return text[:at] + generator.choice("abc天好") + text[at + 1 :]


def scoring(normaliser: str, languages: str, number: int) -> dict[str, Any]:
    made = list(triples(languages, number))
    one = get_normaliser(normaliser)
    utterances, baseline, candidate = map(list, zip(*made, strict=True))
    scorer = Scorer(one, Tokeniser(), utterances, baseline, candidate)
    scorer.score(0)  # tables and libraries are read at the first text

    def all_of_them() -> None:
        for index in range(1, number):
            scorer.score(index)

    return _row("scoring alone", one.id, languages, number, _cpu_s(all_of_them))


def whole_gate(languages: str, number: int) -> dict[str, Any]:
    made = list(triples(languages, number))
    sides = [
        Side(name, lambda asked, column=column: enumerate([one[column] for one in made][: len(asked)]))
        for name, column in (("model", 1), ("engine", 2))
    ]
    options = GateOptions()
    used_s = _cpu_s(lambda: validate(sides[0], sides[1], [one[0] for one in made], options))
    return _row("the whole gate", get_normaliser(options.normaliser).id, languages, number, used_s)


def _cpu_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _row(what: str, normaliser: str, languages: str, number: int, cpu_s: float) -> dict[str, Any]:
    row = {
        "what": what,
        "normaliser": normaliser,
        "languages": languages,
        "utterances": number,
        "cpu_s": round(cpu_s, 2),
        "utterances_per_s": round(number / cpu_s),
    }
    print(f"{row['utterances_per_s']:7,} utterances/s  {what}, {languages}, {normaliser}", file=sys.stderr)
    return row


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--utterances", type=int, default=20_000)
    number = parser.parse_args().utterances
    rows = [scoring(normaliser, languages, number) for normaliser, languages in ROWS]
    rows += [scoring(normaliser, languages, number // 10) for normaliser, languages in HEAVY_ROWS]
    rows.append(whole_gate("en+zh", number))
    document = {
        "what": "utterances scored per second of CPU time: a reference and two hypotheses each, one thread",
        "machine": cpu_name(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "rapidfuzz": importlib.metadata.version("rapidfuzz"),
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
