from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from wer_doubles import utterances

from svtool.wer.groups import Scorer
from svtool.wer.normalise import get_normaliser
from svtool.wer.score import Counts, Tokeniser
from svtool.wer.sides import Answer


class CountedReads(list[Answer]):
    """As answers on a disk: a look at one is a read."""

    reads = 0

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        self.reads += 1
        return super().__getitem__(index)


def scorer(
    references: Sequence[str], baseline: Sequence[str], candidate: Sequence[str], name: str = "basic"
) -> Scorer:
    sides = (CountedReads(map(Answer, texts)) for texts in (baseline, candidate))
    return Scorer(get_normaliser(name), Tokeniser(), utterances(references), *sides)


@pytest.mark.parametrize(
    ("baseline", "candidate", "before", "after", "between"),
    [
        ("A b c.", "a b c", (3, 0, 0, 0), (3, 0, 0, 0), (3, 0, 0, 0)),
        ("a x c", "a x c", (2, 1, 0, 0), (2, 1, 0, 0), (3, 0, 0, 0)),
        ("a b c", "a b", (3, 0, 0, 0), (2, 0, 1, 0), (2, 0, 1, 0)),
        ("a b", "a b c", (2, 0, 1, 0), (3, 0, 0, 0), (2, 0, 0, 1)),
        ("", "a b c", (0, 0, 3, 0), (3, 0, 0, 0), (0, 0, 0, 3)),
    ],
)
def test_three_texts_give_three_counts(
    baseline: str, candidate: str, before: tuple[int, ...], after: tuple[int, ...], between: tuple[int, ...]
) -> None:
    scored = scorer(["A b c!"], [baseline], [candidate]).score(0)
    assert scored.baseline == Counts(*before)
    assert scored.candidate == Counts(*after)
    assert scored.against_baseline == Counts(*between)


def test_every_answer_is_looked_at_once() -> None:
    one = scorer(["a b"] * 5, ["a b"] * 5, ["a c"] * 5)
    for index in range(5):
        one.score(index)
    assert isinstance(one.baseline, CountedReads)
    assert isinstance(one.candidate, CountedReads)
    assert (one.baseline.reads, one.candidate.reads) == (5, 5)


def test_scoring_is_fast() -> None:
    """`benchmarks/scoring.py` measures four to seven times this; CPU time, since machines that test are busy."""
    references = [f"Zebra, {number} don't 今天去公园 please and thank you!" for number in range(4000)]
    baseline = [text.lower() for text in references]
    candidate = [text.replace("please", "pleas") for text in baseline]
    one = scorer(references, baseline, candidate)
    began = time.process_time()
    errors = sum(one.score(index).candidate.errors for index in range(len(references)))
    assert len(references) / (time.process_time() - began) > 5000
    assert errors == 4000
