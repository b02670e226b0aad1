"""Runs two sides over the same utterances, scores them, and reports: pass, fail or inconclusive.

Knows the order of the work. Knows nothing of engines, audio or terminals: each side brings a function that
transcribes (`Side`), and SQNR comes from a function that compares logits.
"""

from __future__ import annotations

import platform
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from svtool.errors import SvtoolError, UsageError, counted
from svtool.progress import Progress, Silent
from svtool.sqnr import Sqnr
from svtool.wer.checks import (
    AloneCheck,
    Check,
    GateOptions,
    Verdict,
    alone_check,
    bucket_checks,
    decide,
    disagreement_check,
    failures_check,
    more_utterances,
    percent,
    sqnr_check,
    warnings,
)
from svtool.wer.groups import (
    DURATION_BUCKETS,
    Group,
    Grouping,
    Scored,
    Scorer,
    Worst,
    cell,
    duration_bucket,
    worst_group,
    worst_utterances,
)
from svtool.wer.normalise import get_normaliser, strip_tags
from svtool.wer.score import Counts, Interval, Tokeniser, count, rate_interval, total
from svtool.wer.sides import (
    Answer,
    Side,
    Transcriber,
    collect,
    collect_answers,
    pairing_notes,
    require_same_conditions,
    tag_agreement,
)

if TYPE_CHECKING:
    from svtool.utterances import Utterance

__all__ = ["Answer", "GateOptions", "GateReport", "Side", "SideScore", "Sqnr", "Transcriber", "validate"]

SqnrMeter = Callable[[Sequence["Utterance"]], Sqnr]
INT8_CPU_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm")


@dataclass(frozen=True)
class SideScore:
    side: Side
    counts: Counts
    interval: Interval | None  # 95 % of the rate, as a fraction
    failed: tuple[tuple[str, str], ...]  # (id, error); scored as empty texts
    empty: int  # answers without a token where the reference has some
    punctuation: int  # characters in the raw texts
    alone: AloneCheck | None


@dataclass(frozen=True)
class GateReport:
    verdict: Verdict
    reasons: tuple[str, ...]  # why this verdict
    warnings: tuple[str, ...]  # what else to know before trusting it
    options: GateOptions
    normaliser: str  # id with version
    tokeniser: Tokeniser
    baseline: SideScore
    candidate: SideScore
    whole: Group
    more_utterances: int | None  # that would decide an inconclusive drift
    differing: int  # utterances whose normalised texts differ between the sides
    sqnr_db: float | None  # inf for identical logits
    sqnr_frames: int
    checks: tuple[Check, ...]
    tag_agreement: Mapping[str, float | None]  # percent
    by_language: tuple[Group, ...]
    by_duration: tuple[Group, ...]
    by_column: Mapping[str, tuple[Group, ...]]
    worst_duration: str | None
    worst: tuple[Worst, ...]
    machine: Mapping[str, str | tuple[str, ...]]
    changes: Mapping[int, int]  # candidate - baseline errors of one utterance: how many utterances

    @property
    def executed(self) -> bool:
        """Whether both artifacts themselves ran, no twin or saved text in their place."""
        return self.baseline.side.executed and self.candidate.side.executed

    @property
    def disagreement(self) -> float | None:
        """Percent: the candidate scored against the baseline's texts."""
        return percent(self.whole.against_baseline)

    @property
    def exit_code(self) -> int:
        return {"pass": 0, "fail": 1, "inconclusive": 3}[self.verdict]


def validate(
    baseline: Side,
    candidate: Side,
    utterances: Sequence[Utterance],
    options: GateOptions | None = None,
    progress: Progress | None = None,
    *,
    measure_sqnr: SqnrMeter | None = None,
) -> GateReport:
    return _Gate(baseline, candidate, utterances, options or GateOptions(), progress or Silent()).run(
        measure_sqnr
    )


class _Gate:
    def __init__(
        self,
        baseline: Side,
        candidate: Side,
        utterances: Sequence[Utterance],
        options: GateOptions,
        progress: Progress,
    ) -> None:
        _require_references(utterances)
        require_same_conditions(baseline, candidate)
        self._sides = (baseline, candidate)
        self._utterances, self._options, self._progress = utterances, options, progress
        self._normaliser, self._tokeniser = get_normaliser(options.normaliser), Tokeniser(options.korean)
        self._judged = _judged_by_disagreement(utterances, options)

    def run(self, measure_sqnr: SqnrMeter | None) -> GateReport:
        options, utterances = self._options, self._utterances
        answers = [collect_answers(side, utterances, self._progress) for side in self._sides]
        scorer = Scorer(self._normaliser, self._tokeniser, utterances, *answers)
        scored = self._score(scorer)
        grouping = Grouping(scored, budget=options.budget, resamples=options.resamples, seed=options.seed)
        whole = grouping.all()
        by_language = grouping.by([one.language for one in scored])
        by_duration = grouping.by([duration_bucket(one.duration_s) for one in scored], DURATION_BUCKETS)
        per_side = ([one.baseline for one in scored], [one.candidate for one in scored])
        before, after = (
            self._side_score(side, said, counts)
            for side, said, counts in zip(self._sides, answers, per_side, strict=True)
        )
        sqnr = self._sqnr(measure_sqnr)
        checks = (
            *self._side_checks(before),
            *self._side_checks(after),
            *disagreement_check(
                total(scored[i].against_baseline for i in self._judged), len(self._judged), options
            ),
            *sqnr_check(sqnr.db if sqnr else None, options),
            *bucket_checks("duration", by_duration, options),
            *bucket_checks("language", by_language, options),
        )
        more = more_utterances(whole, options.budget)
        baseline, candidate = (side.digest for side in self._sides)
        verdict, reasons = decide(
            whole, checks, options.budget, more, identical=baseline is not None and baseline == candidate
        )
        worst_duration = worst_group(by_duration)
        return GateReport(
            verdict=verdict,
            reasons=reasons,
            warnings=(
                *pairing_notes(*self._sides),
                *warnings(whole, self._side_notes(), worst_duration),
            ),
            options=options,
            normaliser=self._normaliser.id,
            tokeniser=self._tokeniser,
            baseline=before,
            candidate=after,
            whole=whole,
            more_utterances=more if verdict == "inconclusive" else None,
            differing=sum(one.against_baseline.errors > 0 for one in scored),
            sqnr_db=sqnr.db if sqnr else None,
            sqnr_frames=sqnr.frames if sqnr else 0,
            checks=checks,
            tag_agreement=tag_agreement(*answers),
            by_language=by_language,
            by_duration=by_duration,
            by_column={
                name: grouping.by([cell(one, name) for one in utterances]) for name in options.columns
            },
            worst_duration=worst_duration.name if worst_duration else None,
            worst=tuple(scorer.show(one) for one in worst_utterances(scored, options.worst)),
            machine=machine(),
            changes=dict(sorted(Counter(one.change for one in scored).items())),
        )

    def _side_notes(self) -> list[tuple[str, bool, str | None]]:
        # two files of different folders often have one name
        roles = zip(("baseline", "candidate"), self._sides, strict=True)
        return [(f"{role} {side.name}", side.executed, side.note) for role, side in roles]

    def _score(self, scorer: Scorer) -> list[Scored]:
        self._progress.stage("Scoring", total=len(self._utterances))
        scored = []
        for index in range(len(self._utterances)):
            scored.append(scorer.score(index))
            self._progress.advance()
        return scored

    def _side_score(self, side: Side, answers: Sequence[Answer], counts: Sequence[Counts]) -> SideScore:
        options = self._options
        return SideScore(
            side,
            total(counts),
            rate_interval(
                [one.errors for one in counts],
                [one.reference_tokens for one in counts],
                resamples=options.resamples,
                seed=options.seed,
            ),
            tuple(
                (u.id, a.error) for u, a in zip(self._utterances, answers, strict=True) if a.error is not None
            ),
            sum(one.hypothesis_tokens == 0 and one.reference_tokens > 0 for one in counts),
            sum(_punctuation(answer.text) for answer in answers),
            self._alone(side, answers),
        )

    def _alone(self, side: Side, answers: Sequence[Answer]) -> AloneCheck | None:
        if side.transcribe_alone is None:
            return None
        indices = _spread(len(answers), self._options.alone_sample)
        chosen = [self._utterances[index] for index in indices]
        self._progress.stage(f"Batch-1 cross-check of {side.name}", total=len(chosen))
        alone = collect(side.name, side.transcribe_alone, chosen, self._progress)
        counts = [
            count(self._tokens(answer.text), self._tokens(answers[index].text))
            for index, answer in zip(indices, alone, strict=True)
        ]
        differing = tuple(one.id for one, of_one in zip(chosen, counts, strict=True) if of_one.errors)
        return AloneCheck(len(chosen), differing, percent(total(counts)))

    def _tokens(self, text: str) -> list[str]:
        return self._tokeniser(self._normaliser(text))

    def _side_checks(self, score: SideScore) -> tuple[Check, ...]:
        name = score.side.name
        failures = failures_check(name, score.failed, len(self._utterances))
        return (failures, *alone_check(name, score.alone, self._options))

    def _sqnr(self, measure: SqnrMeter | None) -> Sqnr | None:
        if measure is None:
            return None
        indices = _spread(len(self._utterances), self._options.sqnr_sample)
        self._progress.stage("Comparing logits")
        return measure([self._utterances[index] for index in indices])


def _require_references(utterances: Sequence[Utterance]) -> None:
    if not utterances:
        raise SvtoolError("the utterance list is empty: nothing to validate on")
    missing = [one.id for one in utterances if one.text is None]
    if missing:
        first = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        raise SvtoolError(
            f"{len(missing)} of {counted(len(utterances), 'utterance')} without reference text ({first}): "
            'give each a "text" (an empty one where nobody speaks) or leave them out of the list'
        )


def _judged_by_disagreement(utterances: Sequence[Utterance], options: GateOptions) -> list[int]:
    if options.disagreement_where is None:
        return list(range(len(utterances)))
    column, value = options.disagreement_where
    judged = [index for index, one in enumerate(utterances) if cell(one, column) == value]
    if not judged and options.max_disagreement is not None:
        found = ", ".join(sorted({cell(one, column) for one in utterances})[:8])
        raise UsageError(
            f"the disagreement limit is for {column} = {value}, but this list's {column} is {found}"
        )
    return judged


def _spread(length: int, number: int) -> list[int]:
    """Up to `number` indices spread evenly, since lists are often sorted by set or by length."""
    return sorted({round(at) for at in np.linspace(0, length - 1, min(length, number))})


def _punctuation(text: str) -> int:
    return sum(map(_is_punctuation, strip_tags(text)))


@lru_cache(maxsize=4096)
def _is_punctuation(char: str) -> bool:
    return unicodedata.category(char)[0] == "P"


def machine() -> dict[str, str | tuple[str, ...]]:
    """What changes scores although the artifacts are the same: int8 arithmetic and the Unicode tables."""
    return {"cpu": platform.machine(), "cpu_flags": cpu_flags(), "unicode": unicodedata.unidata_version}


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """Those that decide how int8 is computed; empty where the system does not tell."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    lines = (line for line in text.splitlines() if line.lower().startswith(("flags", "features")))
    present = set(next(lines, "").partition(":")[2].split())
    return tuple(flag for flag in INT8_CPU_FLAGS if flag in present)
