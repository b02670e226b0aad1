"""From measured signals to a verdict: limits, hard checks, reasons and warnings in words.

Knows numbers and limits. Knows nothing of how they were measured.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from svtool.errors import UsageError, counted
from svtool.wer.groups import Group
from svtool.wer.score import Counts, Korean, utterances_to_decide
from svtool.wer.sides import bad_audio_words
from svtool.wer.words import amount, signed

Verdict = Literal["pass", "fail", "inconclusive"]
ENOUGH_UTTERANCES = 200
# Whatever the length of the list, it is the changed texts that tell how far drift may vary: with one expected change
# the interval holds the truth in 63 to 70 % of simulated sets, with five in 93 % (of 95 promised).
ENOUGH_CHANGED = 5
_NOT_EXECUTED = "engine itself not executed"
# Below this many a bucket's bootstrap is a lottery; and among many buckets one looks bad by chance, so a bucket
# fails only when hardly any resample stays within the budget.
ENOUGH_IN_A_BUCKET = 10
_SURE = 0.999


@dataclass(frozen=True)
class GateOptions:
    budget: float = 0.5  # points of drift
    max_disagreement: float | None = None  # percent, candidate scored against baseline text
    disagreement_where: tuple[str, str] | None = (
        None  # column and value: the limit judges only these utterances
    )
    min_sqnr_db: float | None = None
    min_sqnr_why: str | None = None  # in words, where the limit was derived from a reference
    normaliser: str = "basic"
    korean: Korean = "words"
    columns: tuple[str, ...] = ()  # further columns of the list to break drift down by
    worst: int = 10
    resamples: int = 2000
    seed: int = 0
    sqnr_sample: int = 64  # utterances
    alone_sample: int = 32  # utterances
    max_alone_disagreement: float = 5.0  # percent; padding faults give far more, rounding far less
    data: Mapping[str, str] = field(default_factory=dict)  # e.g. {"list": path, "sha256": digest}
    notes: tuple[str, ...] = ()  # on the list, told among the warnings

    def __post_init__(self) -> None:
        if not (math.isfinite(self.budget) and self.budget >= 0):
            raise UsageError(f"the drift budget is in points and cannot be {self.budget}: give 0 or more")
        for name, limit in (("disagreement", self.max_disagreement), ("SQNR", self.min_sqnr_db)):
            if limit is not None and not (math.isfinite(limit) and limit >= 0):
                raise UsageError(f"the limit on {name} cannot be {limit}: give 0 or more")
        if self.resamples < 100:
            raise UsageError(f"{self.resamples} resamples give no interval: use at least 100 (default 2000)")


@dataclass(frozen=True)
class Check:
    """A hard check. `passed` None = a limit is set but the value could not be measured."""

    name: str
    value: float | None
    limit: float
    passed: bool | None
    message: str


@dataclass(frozen=True)
class AloneCheck:
    """Texts at the served batch settings against texts of the same utterances at batch 1."""

    utterances: int
    differing: tuple[str, ...]  # ids
    disagreement: float | None  # percent


def percent(counts: Counts) -> float | None:
    return None if counts.rate is None else 100.0 * counts.rate


def failures_check(name: str, failed: Sequence[tuple[str, str]], utterances: int) -> Check:
    shown = "; ".join(f"{one}: {error}" for one, error in failed[:5]) + ("; …" if len(failed) > 5 else "")
    message = f"{name} failed on {len(failed)} of {counted(utterances, 'utterance')}" + (
        f" ({shown})" if failed else ""
    )
    return Check(f"failed utterances of {name}", len(failed), 0, not failed, message)


def audio_check(
    bad: Sequence[str], shared: Sequence[str], utterances: int, listed: str | None
) -> Iterator[Check]:
    """What is no side's fault. `bad`: errors of the audio itself; `shared`: of utterances that both sides failed on."""
    if bad:
        yield Check("unusable audio", len(bad), 0, False, bad_audio_words(bad, utterances, listed))
    if shared:
        first = "; ".join(shared[:5]) + ("; …" if len(shared) > 5 else "")
        said = (
            f"both sides failed on the same {len(shared):,} of {counted(utterances, 'utterance')}, so look at "
            f"their audio ({first}): svtool data check {shlex.quote(listed or 'LIST')}"
        )
        yield Check("failed utterances of both sides", len(shared), 0, False, said)


def disagreement_check(judged: Counts, utterances: int, options: GateOptions) -> Iterator[Check]:
    limit = options.max_disagreement
    if limit is None:
        return
    where = " with " + " ".join(options.disagreement_where) if options.disagreement_where else ""
    scope = f"on {counted(utterances, 'utterance')}{where}"
    value = percent(judged)
    if value is None:
        # Both silent is agreement; text where the baseline has none at all cannot be put in percent.
        said = f"the baseline gave no text {scope} and the candidate {counted(judged.insertions, 'word')}"
        yield Check("disagreement", None, limit, judged.errors == 0, said)
        return
    side = "within" if value <= limit else "above"
    said = (
        f"the candidate changed {value:.2f} % of the words in the baseline's texts {scope}, "
        f"{side} the limit of {limit:g} %"
    )
    yield Check("disagreement", value, limit, value <= limit, said)


def sqnr_check(value: float | None, options: GateOptions) -> Iterator[Check]:
    limit = options.min_sqnr_db
    if limit is None:
        return
    if value is None:
        said = (
            "the signal to noise ratio (SQNR) has a limit but was not measured: both sides need raw scores "
            "(their ONNX twins give them)"
        )
        yield Check("sqnr_db", None, limit, None, said)
        return
    side = "at or above" if value >= limit else "below"
    yield Check(
        "sqnr_db",
        value,
        limit,
        value >= limit,
        f"signal to noise (SQNR) of {value:.1f} dB is {side} the limit of {round(limit, 2):g} dB"
        + (f" ({options.min_sqnr_why})" if options.min_sqnr_why else ""),
    )


def bucket_checks(kind: str, groups: Sequence[Group], options: GateOptions) -> Iterator[Check]:
    """A fault that only long clips (or one language) show must not hide in the whole."""
    for group in groups:
        if group.interval is None or group.utterances < ENOUGH_IN_A_BUCKET or len(groups) == 1:
            continue
        if group.interval.exceeds >= _SURE:
            said = f"{kind} {group.name}: {_drift_words(group)} lies above the budget of {_points(options.budget)}"
            yield Check(f"{kind} {group.name}", group.drift, options.budget, False, said)


def alone_check(name: str, alone: AloneCheck | None, options: GateOptions) -> Iterator[Check]:
    if alone is None:
        return
    limit = options.max_alone_disagreement
    passed = not alone.differing if alone.disagreement is None else alone.disagreement <= limit
    said = (
        f"{name}: {len(alone.differing)} of {counted(alone.utterances, 'text')} changed when each utterance "
        "was run alone, not in a batch"
    )
    yield Check(f"batch 1 of {name}", alone.disagreement, limit, passed, said)


def more_utterances(whole: Group, budget: float) -> int | None:
    if whole.drift is None or whole.interval is None:
        return None
    return utterances_to_decide(whole.utterances, whole.drift, whole.interval, budget)


def decide(
    whole: Group, checks: Sequence[Check], budget: float, more: int | None, *, identical: bool = False
) -> tuple[Verdict, tuple[str, ...]]:
    """`identical`: both sides are the same artifact, so that any amount of data shows no drift."""
    failed = [check.message for check in checks if check.passed is False]
    unmeasured = [check.message for check in checks if check.passed is None]
    if whole.interval is None:
        return ("fail" if failed else "inconclusive"), (
            *failed,
            "no reference text holds a word: drift is undefined",
        )
    drift = _drift_words(whole)
    if whole.interval.low > budget:
        failed.insert(0, f"{drift} lies above the budget of {_points(budget)}")
    if failed:
        return "fail", tuple(failed)
    if whole.interval.high > budget:
        return "inconclusive", (
            f"{drift} straddles the budget of {_points(budget)}: {_advice(more)}",
            *unmeasured,
        )
    tokens = whole.baseline.reference_tokens
    if not identical and 100.0 > budget * tokens > 0:
        return "inconclusive", (
            f"one error in {amount(tokens, whole.metric)} is already {100 / tokens:.2f} points, more than the "
            f"budget of {_points(budget)}: too little data to tell",
            *unmeasured,
        )
    return ("inconclusive" if unmeasured else "pass"), (
        f"{drift} stays within the budget of {_points(budget)}",
        *unmeasured,
    )


def _drift_words(group: Group) -> str:
    assert group.drift is not None
    assert group.interval is not None
    low, high = (signed(bound) for bound in (group.interval.low, group.interval.high))
    return f"drift {signed(group.drift)} points (95 % interval {low} to {high})"


def _points(budget: float) -> str:
    return f"{budget:g} point" + ("" if budget == 1 else "s")


def _advice(more: int | None) -> str:
    if more is None:
        return "the drift sits on the budget itself, so more utterances will hardly decide"
    return f"about {counted(_rounded(more), 'more utterance')} like these would decide"


def _rounded(number: int) -> int:
    """Two figures are all that an extrapolation deserves."""
    step = int(10 ** max(0, len(str(number)) - 2))
    return -(-number // step) * step


def few_utterances(utterances: int, reference: str) -> Iterator[str]:
    if utterances < ENOUGH_UTTERANCES:
        yield (
            f"only {counted(utterances, 'utterance')} ({reference} of reference text): fewer than "
            f"{ENOUGH_UTTERANCES} are too few utterances for the interval to mean much, it is too narrow to trust"
        )


def _few_changes(changed: int, utterances: int) -> Iterator[str]:
    if changed < ENOUGH_CHANGED:
        some = f"hardly any text changed ({changed:,} of {utterances:,})"
        yield (
            f"{some if changed else f'none of {utterances:,} texts changed'}: the interval is drawn from the changes, "
            "too few here for it to mean much, it is too narrow to trust"
        )


def warnings(
    whole: Group,
    sides: Sequence[tuple[str, bool, str | None]],
    worst_duration: Group | None,
    *,
    changed: int | None = None,
) -> tuple[str, ...]:
    """`sides`: (name, executed, note). `changed`: texts that differ; None where one file ran on both sides."""
    found = list(few_utterances(whole.utterances, amount(whole.baseline.reference_tokens, whole.metric)))
    if changed is not None and whole.interval is not None:
        found += _few_changes(changed, whole.utterances)
    for name, executed, note in sides:
        said = [] if executed or (note and _NOT_EXECUTED in note) else [_NOT_EXECUTED]
        if said or note:
            found.append(f"{name}: {'; '.join([*said, note] if note else said)}")
    if (
        worst_duration is not None
        and whole.drift is not None
        and (worst_duration.drift or 0) > max(whole.drift, 0)
    ):
        found.append(
            f"drift is largest in audio of {worst_duration.name}: {signed(worst_duration.drift or 0)} points"
        )
    return tuple(found)
