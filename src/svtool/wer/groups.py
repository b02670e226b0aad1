"""Counts of every utterance, and drift of any group of them: all, a language, a duration bucket, a column.

Knows texts and counts. Knows nothing of verdicts, engines or audio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from svtool.wer.score import (
    Counts,
    DriftInterval,
    MetricName,
    Tokeniser,
    count,
    language_key,
    metric_of,
    paired_bootstrap,
    total,
)

if TYPE_CHECKING:
    from svtool.utterances import Utterance
    from svtool.wer.normalise import Normaliser
    from svtool.wer.sides import Answer

DURATION_BUCKETS = ("<5 s", "5-15 s", "15-30 s", ">30 s")
UNLABELLED = "unlabelled"


@dataclass(frozen=True, slots=True)
class Scored:
    """One utterance, counted. Texts are not kept here: 100,000 of these must stay small."""

    index: int
    language: str
    duration_s: float | None
    metric: MetricName | None
    baseline: Counts
    candidate: Counts
    against_baseline: Counts

    @property
    def change(self) -> int:
        return self.candidate.errors - self.baseline.errors


@dataclass(frozen=True)
class Worst:
    """One utterance as a person wants to see it. Texts are (reference, baseline, candidate)."""

    id: str
    language: str
    duration_s: float | None
    raw: tuple[str, str, str]
    normalised: tuple[str, str, str]
    baseline: Counts
    candidate: Counts
    audio: Path | None = None


@dataclass(frozen=True)
class Group:
    name: str
    metric: MetricName
    utterances: int
    baseline: Counts
    candidate: Counts
    against_baseline: Counts
    drift: float | None  # points; None without reference tokens
    interval: DriftInterval | None


@dataclass(frozen=True)
class Scorer:
    """One utterance at a time, with the same normaliser and tokeniser on all three texts."""

    normaliser: Normaliser
    tokeniser: Tokeniser
    utterances: Sequence[Utterance]
    baseline: Sequence[Answer]
    candidate: Sequence[Answer]

    def raw(self, index: int) -> tuple[str, str, str]:
        return self.utterances[index].text or "", self.baseline[index].text, self.candidate[index].text

    def score(self, index: int) -> Scored:
        utterance, answer = self.utterances[index], self.candidate[index]  # may be read from a disk: once
        language = language_key(utterance.language)
        raw = utterance.text or "", self.baseline[index].text, answer.text
        reference, baseline, candidate = self._normalised(raw, language)
        expected, before = self.tokeniser(reference), self.tokeniser(baseline)
        of_baseline = count(expected, before)
        same = candidate == baseline
        after = before if same else self.tokeniser(candidate)
        return Scored(
            index,
            language,
            answer.duration_s if utterance.duration_s is None else utterance.duration_s,
            self.tokeniser.metric(reference),
            of_baseline,
            of_baseline if same else count(expected, after),
            count(before, after),
        )

    def show(self, scored: Scored) -> Worst:
        raw = self.raw(scored.index)
        return Worst(
            self.utterances[scored.index].id,
            scored.language,
            scored.duration_s,
            raw,
            self._normalised(raw, scored.language),
            scored.baseline,
            scored.candidate,
            self.utterances[scored.index].audio,
        )

    def _normalised(self, raw: tuple[str, str, str], language: str) -> tuple[str, str, str]:
        reference, baseline = self.normaliser(raw[0], language), self.normaliser(raw[1], language)
        return reference, baseline, baseline if raw[2] == raw[1] else self.normaliser(raw[2], language)


class Grouping:
    """The counts as arrays i64[N], so that any group of utterances is an index array away."""

    def __init__(self, scored: Sequence[Scored], *, budget: float, resamples: int, seed: int) -> None:
        self._scored = scored
        self._budget, self._resamples, self._seed = budget, resamples, seed
        self.tokens = np.array([one.baseline.reference_tokens for one in scored], dtype=np.int64)
        self.baseline = np.array([one.baseline.errors for one in scored], dtype=np.int64)
        self.candidate = np.array([one.candidate.errors for one in scored], dtype=np.int64)

    def all(self) -> Group:
        return self._group("all", np.arange(len(self._scored)))

    def by(self, labels: Sequence[str], order: Sequence[str] = ()) -> tuple[Group, ...]:
        """One group per label: those in `order` first, then the largest first."""
        members: dict[str, list[int]] = {}
        for index, label in enumerate(labels):
            members.setdefault(label, []).append(index)
        ordered = [label for label in order if label in members]
        ordered += sorted(members.keys() - set(ordered), key=lambda label: (-len(members[label]), label))
        return tuple(self._group(label, np.array(members[label], dtype=np.int64)) for label in ordered)

    def _group(self, name: str, members: npt.NDArray[np.int64]) -> Group:
        scored = [self._scored[index] for index in members]
        before, after, tokens = self.baseline[members], self.candidate[members], self.tokens[members]
        languages = {one.language for one in scored}
        return Group(
            name,
            metric_of((one.metric for one in scored), languages.pop() if len(languages) == 1 else None),
            len(scored),
            total(one.baseline for one in scored),
            total(one.candidate for one in scored),
            total(one.against_baseline for one in scored),
            100.0 * int((after - before).sum()) / int(tokens.sum()) if tokens.any() else None,
            paired_bootstrap(
                before, after, tokens, budget=self._budget, resamples=self._resamples, seed=self._seed
            ),
        )


def duration_bucket(duration_s: float | None) -> str:
    if duration_s is None or not math.isfinite(duration_s):
        return "unknown"
    if duration_s < 5.0:
        return DURATION_BUCKETS[0]
    if duration_s < 15.0:
        return DURATION_BUCKETS[1]
    return DURATION_BUCKETS[2] if duration_s <= 30.0 else DURATION_BUCKETS[3]


def cell(utterance: Utterance, column: str) -> str:
    """The value of any column of the list, as a label."""
    value = getattr(utterance, column) if column in ("language", "emotion") else utterance.extra.get(column)
    return UNLABELLED if value in (None, "") else str(value)


def worst_group(groups: Sequence[Group]) -> Group | None:
    """The one with the largest drift; None when no group drifts upwards."""
    drifting = [one for one in groups if one.drift is not None and one.drift > 0]
    return max(drifting, key=lambda one: one.drift or 0.0, default=None)


def worst_utterances(scored: Sequence[Scored], number: int) -> list[Scored]:
    """Those the candidate made worse first, then those it changed, then the ones both sides get wrong."""
    import heapq

    wrong = (one for one in scored if one.candidate.errors or one.against_baseline.errors)
    return heapq.nlargest(
        number,
        wrong,
        key=lambda one: (one.change, one.against_baseline.errors, one.candidate.errors, -one.index),
    )
