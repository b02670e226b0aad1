"""Runs two sides over the same utterances, scores them, and reports: pass, fail or inconclusive.

Knows the order of the work. Knows nothing of engines, audio or terminals: each side brings a function that
transcribes (`Side`), and SQNR comes from a function that compares logits.
"""

from __future__ import annotations

import platform
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    audio_check,
    bucket_checks,
    decide,
    disagreement_check,
    failures_check,
    more_utterances,
    percent,
    sqnr_check,
    warnings,
)
from svtool.wer.columns import labels_of
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
from svtool.wer.journal import Results, fill, head_of
from svtool.wer.normalise import get_normaliser, strip_tags
from svtool.wer.score import Counts, Interval, Tokeniser, count, rate_interval, total
from svtool.wer.sides import (
    ROLES,
    Answer,
    Side,
    TagAgreement,
    Transcriber,
    collect,
    pairing_notes,
    require_same_conditions,
    same_file,
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
    bad_audio: frozenset[str]  # ids of those whose audio is to blame
    empty: int  # answers without a token where the reference has some
    punctuation: int  # characters in the raw texts
    alone: AloneCheck | None

    @property
    def own_failed(self) -> tuple[tuple[str, str], ...]:
        return tuple(one for one in self.failed if one[0] not in self.bad_audio)


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
    results: Path | None = None,
) -> GateReport:
    """`results`: a file that keeps every answer, so that a run that was killed goes on where it was."""
    options = options or GateOptions()
    gate = _Gate(baseline, candidate, utterances, options, progress or Silent())
    head = head_of({"baseline": baseline, "candidate": candidate}, options.data)
    with Results(results, utterances, head) as answers:
        return gate.run(answers, measure_sqnr)


@dataclass
class SideTally:
    """What is counted of one side while its answers pass by once."""

    counts: list[Counts] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    bad_audio: set[str] = field(default_factory=set)
    empty: int = 0
    punctuation: int = 0

    def add(self, utterance: Utterance, answer: Answer, counts: Counts) -> None:
        self.counts.append(counts)
        if answer.error is not None:
            self.failed.append((utterance.id, answer.error))
            if answer.bad_audio:
                self.bad_audio.add(utterance.id)
        self.empty += counts.hypothesis_tokens == 0 and counts.reference_tokens > 0
        self.punctuation += punctuation(answer.text)

    def score(self, side: Side, alone: AloneCheck | None, *, resamples: int, seed: int) -> SideScore:
        errors = [one.errors for one in self.counts]
        tokens = [one.reference_tokens for one in self.counts]
        return SideScore(
            side,
            total(self.counts),
            rate_interval(errors, tokens, resamples=resamples, seed=seed),
            tuple(self.failed),
            frozenset(self.bad_audio),
            self.empty,
            self.punctuation,
            alone,
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
        require_references(utterances)
        require_same_conditions(baseline, candidate)
        self._sides = (baseline, candidate)
        self._utterances, self._options, self._progress = utterances, options, progress
        self._normaliser, self._tokeniser = get_normaliser(options.normaliser), Tokeniser(options.korean)
        self._judged = _judged_by_disagreement(utterances, options)

    def run(self, results: Results, measure_sqnr: SqnrMeter | None) -> GateReport:
        options, utterances = self._options, self._utterances
        for role, side in zip(ROLES, self._sides, strict=True):
            fill(results, role, side, self._progress, listed=options.data.get("list"))
        answers = [results.answers(role) for role in ROLES]
        scorer = Scorer(self._normaliser, self._tokeniser, utterances, *answers)
        scored, tallies, tags = self._score(scorer, answers)
        results.put_scores(f"{self._normaliser.id} {self._tokeniser.id}", score_lines(utterances, scored))
        grouping = Grouping(scored, budget=options.budget, resamples=options.resamples, seed=options.seed)
        whole = grouping.all()
        by_language = grouping.by([one.language for one in scored])
        by_duration = grouping.by([duration_bucket(one.duration_s) for one in scored], DURATION_BUCKETS)
        before, after = (
            tally.score(side, self._alone(side, said), resamples=options.resamples, seed=options.seed)
            for side, said, tally in zip(self._sides, answers, tallies, strict=True)
        )
        sqnr = self._sqnr(measure_sqnr)
        checks = (
            *shared_failures(before, after, utterances, options),
            *self._side_checks(before, after),
            *self._side_checks(after, before),
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
        differing = sum(one.against_baseline.errors > 0 for one in scored)
        return GateReport(
            verdict=verdict,
            reasons=reasons,
            warnings=(
                *options.notes,
                *pairing_notes(*self._sides),
                *warnings(
                    whole,
                    self._side_notes(),
                    worst_duration,
                    changed=None if same_file(*self._sides) else differing,
                ),
            ),
            options=options,
            normaliser=self._normaliser.id,
            tokeniser=self._tokeniser,
            baseline=before,
            candidate=after,
            whole=whole,
            more_utterances=more if verdict == "inconclusive" else None,
            differing=differing,
            sqnr_db=sqnr.db if sqnr else None,
            sqnr_frames=sqnr.frames if sqnr else 0,
            checks=checks,
            tag_agreement=tags.percent(),
            by_language=by_language,
            by_duration=by_duration,
            by_column={name: grouping.by(*labels_of(utterances, name)) for name in options.columns},
            worst_duration=worst_duration.name if worst_duration else None,
            worst=tuple(scorer.show(one) for one in worst_utterances(scored, options.worst)),
            machine=machine(),
            changes=dict(sorted(Counter(one.change for one in scored).items())),
        )

    def _side_notes(self) -> list[tuple[str, bool, str | None]]:
        # two files of different folders often have one name
        roles = zip(("baseline", "candidate"), self._sides, strict=True)
        return [(f"{role} {side.name}", side.executed, side.note) for role, side in roles]

    def _score(
        self, scorer: Scorer, answers: Sequence[Sequence[Answer]]
    ) -> tuple[list[Scored], tuple[SideTally, SideTally], TagAgreement]:
        """Every text is read from the disk once and not kept."""
        self._progress.stage("Scoring", total=len(self._utterances))
        scored, before, after, tags = [], SideTally(), SideTally(), TagAgreement()
        for index, utterance in enumerate(self._utterances):
            one = scorer.score(index)
            scored.append(one)
            baseline, candidate = (said[index] for said in answers)
            before.add(utterance, baseline, one.baseline)
            after.add(utterance, candidate, one.candidate)
            tags.add(baseline, candidate)
            self._progress.advance()
        return scored, (before, after), tags

    def _alone(self, side: Side, answers: Sequence[Answer]) -> AloneCheck | None:
        return alone_compared(side, answers, self._utterances, self._options, self._tokens, self._progress)

    def _tokens(self, text: str) -> list[str]:
        return self._tokeniser(self._normaliser(text))

    def _side_checks(self, score: SideScore, other: SideScore) -> tuple[Check, ...]:
        name, alike = score.side.name, dict(other.failed)
        own = [one for one in score.own_failed if one[0] not in alike]
        failures = failures_check(name, own, len(self._utterances))
        return (failures, *alone_check(name, score.alone, self._options))

    def _sqnr(self, measure: SqnrMeter | None) -> Sqnr | None:
        if measure is None:
            return None
        indices = _spread(len(self._utterances), self._options.sqnr_sample)
        self._progress.stage("Comparing logits")
        return measure([self._utterances[index] for index in indices])


def shared_failures(
    before: SideScore, after: SideScore, utterances: Sequence[Utterance], options: GateOptions
) -> Iterator[Check]:
    errors, others = dict(before.failed) | dict(after.failed), dict(before.failed)
    unusable = before.bad_audio | after.bad_audio
    bad = [errors[one.id] for one in utterances if one.id in unusable]
    shared = [f"{one}: {error}" for one, error in after.own_failed if one in others and one not in unusable]
    yield from audio_check(bad, shared, len(utterances), options.data.get("list"))


def require_references(utterances: Sequence[Utterance]) -> None:
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


def alone_compared(
    side: Side,
    answers: Sequence[Answer],
    utterances: Sequence[Utterance],
    options: GateOptions,
    tokens: Callable[[str], list[str]],
    progress: Progress,
) -> AloneCheck | None:
    """Texts of a sample at batch 1 against those at the served batch settings."""
    if side.transcribe_alone is None:
        return None
    indices = _spread(len(answers), options.alone_sample)
    chosen = [utterances[index] for index in indices]
    progress.stage(f"Batch-1 cross-check of {side.name}", total=len(chosen))
    alone = collect(side.name, side.transcribe_alone, chosen, progress)
    counts = [
        count(tokens(answer.text), tokens(answers[index].text))
        for index, answer in zip(indices, alone, strict=True)
    ]
    differing = tuple(one.id for one, of_one in zip(chosen, counts, strict=True) if of_one.errors)
    return AloneCheck(len(chosen), differing, percent(total(counts)))


def score_lines(utterances: Sequence[Utterance], scored: Sequence[Scored]) -> Iterator[dict[str, Any]]:
    """Counts of every utterance: [hits, substitutions, deletions, insertions]."""
    for one in scored:
        yield {
            "index": one.index,
            "id": utterances[one.index].id,
            "baseline": _figures(one.baseline),
            "candidate": _figures(one.candidate),
            "against_baseline": _figures(one.against_baseline),
        }


def _figures(counts: Counts) -> list[int]:
    return [counts.hits, counts.substitutions, counts.deletions, counts.insertions]


def punctuation(text: str) -> int:
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
