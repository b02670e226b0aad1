"""Metrics as data: tokens, counts, and rates that are views of the counts; bootstrap intervals of drift.

Knows token lists and integer arrays. Knows nothing of engines, files or how texts were normalised.

What one token is (tokeniser `mixed/1`): each Han, kana or other character of a script written without spaces;
else each run between spaces (letters and digits together, so `gpt4` is one token).
Korean is written with spaces, so its tokens are words unless `korean="characters"` is asked for: spacing varies
from writer to writer (할 수 있다, 할수 있다), and by characters such a difference is none.

Errors are the fewest that turn one text into the other, each of weight 1. sclite's weights (4 for a substitution, 3
for the others) give the same counts on ordinary texts and may give more errors on texts with little in common.

What the rate is called: WER when the references hold only words, CER when they hold only characters, MER
(mixed error rate) when they hold both. Digits belong to every script and decide nothing; with nothing else to
go by, zh, yue, ja (and other unspaced languages) are CER and the rest WER.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from svtool.wer.normalise import HANGUL, UNSPACED

if TYPE_CHECKING:
    from types import ModuleType

Korean = Literal["words", "characters"]
MetricName = Literal["WER", "CER", "MER"]
Kind = Literal["equal", "replace", "delete", "insert"]
Ints = npt.NDArray[np.int64]

UNSPACED_LANGUAGES = frozenset({"zh", "yue", "ja", "cmn", "wuu", "nan", "hak", "th", "lo", "my", "km", "bo"})
# Only the `none` normaliser leaves these in a text; they must not glue two characters into a word.
_WIDE_PUNCTUATION = (
    r"\u3001-\u3004\u3008-\u3020\u3030\u303d-\u303f\u30fb\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
)
_RESAMPLE_CELLS = 4_000_000  # int64 cells held at once by the bootstrap: 32 MB


@dataclass(frozen=True)
class Tokeniser:
    korean: Korean = "words"

    @property
    def id(self) -> str:
        return "mixed/1" if self.korean == "words" else "mixed-korean-characters/1"

    def __call__(self, text: str) -> list[str]:
        if text.isascii():
            return text.split()
        return _patterns(self.korean)[0].findall(text)

    def metric(self, text: str) -> MetricName | None:
        """What this one text is scored by; None when it holds no letters."""
        _, character, letter = _patterns(self.korean)
        characters = not text.isascii() and character.search(text) is not None
        words = letter.search(text) is not None
        if characters:
            return "MER" if words else "CER"
        return "WER" if words else None


@lru_cache(maxsize=2)
def _patterns(korean: Korean) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    single = UNSPACED + (HANGUL if korean == "characters" else "")
    alone = single + _WIDE_PUNCTUATION
    token = re.compile(rf"[{alone}]|[^\s{alone}]+")
    return token, re.compile(rf"[{single}]"), re.compile(rf"[^\W\d_{single}]")


def join_tokens(tokens: Sequence[str]) -> str:
    """Back to a readable text: no space beside a character token."""
    is_character = _patterns("words")[1].match
    text = ""
    for token in tokens:
        glued = not text or is_character(text[-1]) or is_character(token)
        text += token if glued else f" {token}"
    return text


def language_key(language: str | None) -> str:
    """`EN`, `en-US`, `zh_CN` -> `en`, `en`, `zh`; the documented misspelling `zn` is `zh`."""
    if not language:
        return "unlabelled"
    key = re.split(r"[-_]", language.strip().lower())[0]
    return {"zn": "zh"}.get(key, key) or "unlabelled"


def metric_of(names: Iterable[MetricName | None], language: str | None = None) -> MetricName:
    """One name for many texts, from the name of each."""
    seen = {name for name in names if name is not None}
    if len(seen) > 1:
        return "MER"
    if seen:
        return seen.pop()
    return "CER" if language_key(language) in UNSPACED_LANGUAGES else "WER"


@dataclass(frozen=True, slots=True)
class Counts:
    """Of one utterance or, added up, of many. Every rate is a view of these."""

    hits: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def reference_tokens(self) -> int:
        return self.hits + self.substitutions + self.deletions

    @property
    def hypothesis_tokens(self) -> int:
        return self.hits + self.substitutions + self.insertions

    @property
    def rate(self) -> float | None:
        """Errors per reference token, may exceed 1; None without reference tokens."""
        return self.errors / self.reference_tokens if self.reference_tokens else None

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.hits + other.hits,
            self.substitutions + other.substitutions,
            self.deletions + other.deletions,
            self.insertions + other.insertions,
        )


def total(counts: Iterable[Counts]) -> Counts:
    """The corpus: sums first, so that its rate is divided once."""
    hits = substitutions = deletions = insertions = 0
    for one in counts:
        hits += one.hits
        substitutions += one.substitutions
        deletions += one.deletions
        insertions += one.insertions
    return Counts(hits, substitutions, deletions, insertions)


@lru_cache(maxsize=1)
def _levenshtein() -> ModuleType:
    from rapidfuzz.distance import Levenshtein

    return Levenshtein


def count(reference: Sequence[str], hypothesis: Sequence[str]) -> Counts:
    if reference == hypothesis:
        return Counts(hits=len(reference))
    if not reference or not hypothesis:
        return Counts(deletions=len(reference), insertions=len(hypothesis))
    tags = [edit.tag for edit in _levenshtein().editops(reference, hypothesis)]
    substitutions, deletions, insertions = (tags.count(tag) for tag in ("replace", "delete", "insert"))
    return Counts(len(reference) - substitutions - deletions, substitutions, deletions, insertions)


@dataclass(frozen=True)
class Chunk:
    """Tokens that stand side by side in an alignment; one side is empty for a deletion or insertion."""

    kind: Kind
    reference: tuple[str, ...]
    hypothesis: tuple[str, ...]


def align(reference: Sequence[str], hypothesis: Sequence[str]) -> list[Chunk]:
    operations: Any = _levenshtein().opcodes(reference, hypothesis)
    return [
        Chunk(
            op.tag,
            tuple(reference[op.src_start : op.src_end]),
            tuple(hypothesis[op.dest_start : op.dest_end]),
        )
        for op in operations
    ]


@dataclass(frozen=True)
class Interval:
    low: float
    high: float


@dataclass(frozen=True)
class DriftInterval(Interval):
    """In points (percent of reference tokens); `exceeds` = share of resamples above the budget."""

    exceeds: float


def paired_bootstrap(
    baseline_errors: Sequence[int] | Ints,
    candidate_errors: Sequence[int] | Ints,
    reference_tokens: Sequence[int] | Ints,
    *,
    budget: float = 0.5,
    resamples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> DriftInterval | None:
    """Percentile interval of candidate - baseline rate in points; an utterance is drawn with both its sides.

    None when there are no reference tokens to divide by.
    """
    change = np.asarray(candidate_errors, dtype=np.int64) - np.asarray(baseline_errors, dtype=np.int64)
    points = 100.0 * _resampled_ratios(change, np.asarray(reference_tokens, dtype=np.int64), resamples, seed)
    if points.size == 0:
        return None
    low, high = _percentiles(points, level)
    return DriftInterval(low, high, exceeds=float((points > budget).mean()))


def rate_interval(
    errors: Sequence[int] | Ints,
    reference_tokens: Sequence[int] | Ints,
    *,
    resamples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval | None:
    """Percentile interval of one side's corpus rate (a fraction)."""
    numerators = np.asarray(errors, dtype=np.int64)
    ratios = _resampled_ratios(numerators, np.asarray(reference_tokens, dtype=np.int64), resamples, seed)
    return Interval(*_percentiles(ratios, level)) if ratios.size else None


def _percentiles(values: npt.NDArray[np.float64], level: float) -> tuple[float, float]:
    outside = (1.0 - level) / 2.0
    low, high = np.quantile(values, [outside, 1.0 - outside])
    return float(low), float(high)


def _resampled_ratios(
    numerators: Ints, denominators: Ints, resamples: int, seed: int
) -> npt.NDArray[np.float64]:  # [<= resamples]
    """Sum of numerators / sum of denominators over utterances drawn with replacement.

    Utterances with the same pair are interchangeable, so one multinomial draw tells how often each *pair* is
    drawn: the same distribution as drawing utterances, at a cost that hardly grows with their number.
    """
    if denominators.sum() == 0:
        return np.empty(0)
    pairs, occurrences = np.unique(np.stack([numerators, denominators]), axis=1, return_counts=True)
    utterances, kinds = int(occurrences.sum()), int(occurrences.size)
    generator = np.random.default_rng(seed)
    rows = max(1, _RESAMPLE_CELLS // kinds)
    sums: list[Ints] = []
    for start in range(0, resamples, rows):
        size = min(rows, resamples - start)
        drawn = generator.multinomial(utterances, occurrences / utterances, size=size)  # [size, kinds]
        sums.append(drawn @ pairs.T)
    numerator, denominator = np.concatenate(sums).T
    drawable = denominator > 0  # a draw of empty references only has no rate
    ratios: npt.NDArray[np.float64] = numerator[drawable] / denominator[drawable]
    return ratios


def utterances_to_decide(utterances: int, drift: float, interval: Interval, budget: float) -> int | None:
    """How many more like these would move the interval off the budget, if the drift stays what it is now.

    The half width shrinks with the square root of the number. None when drift sits on the budget itself.
    """
    margin = abs(budget - drift)
    half_width = interval.high - drift if drift < budget else drift - interval.low
    if margin < 1e-3:
        return None
    return max(1, math.ceil(utterances * (half_width / margin) ** 2) - utterances)
