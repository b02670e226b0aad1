"""One side against the references alone: rates without a baseline, so no drift and no verdict.

Knows answers, counts and how to show them. Knows nothing of engines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from svtool.progress import Progress, Silent
from svtool.wer.checks import (
    Check,
    GateOptions,
    alone_check,
    audio_check,
    failures_check,
    few_utterances,
    percent,
)
from svtool.wer.columns import labels_of
from svtool.wer.gate import SideScore, SideTally, alone_compared, machine, require_references, score_lines
from svtool.wer.groups import (
    DURATION_BUCKETS,
    Scored,
    Scorer,
    Worst,
    duration_bucket,
)
from svtool.wer.journal import Results, fill, head_of
from svtool.wer.layout import Column, Table
from svtool.wer.normalise import get_normaliser
from svtool.wer.score import (
    Counts,
    Interval,
    MetricName,
    Tokeniser,
    align,
    join_tokens,
    metric_of,
    rate_interval,
    total,
)
from svtool.wer.words import amount, units

if TYPE_CHECKING:
    from rich.console import RenderableType

    from svtool.utterances import Utterance
    from svtool.wer.sides import Side

SCHEMA = "svtool.validate-wer.rates/1"


@dataclass(frozen=True)
class Rate:
    """Of a group of utterances; the interval is 95 %, of the rate as a fraction."""

    name: str
    metric: MetricName
    utterances: int
    counts: Counts
    interval: Interval | None


@dataclass(frozen=True)
class RatesReport:
    score: SideScore
    whole: Rate
    by: Mapping[str, tuple[Rate, ...]]  # "language", "duration" and further columns
    worst: tuple[Worst, ...]
    checks: tuple[Check, ...]
    warnings: tuple[str, ...]
    options: GateOptions
    normaliser: str
    tokeniser: Tokeniser
    machine: Mapping[str, Any]

    @property
    def exit_code(self) -> int:
        return 1 if any(check.passed is False for check in self.checks) else 0


def measure(
    side: Side,
    utterances: Sequence[Utterance],
    options: GateOptions | None = None,
    progress: Progress | None = None,
    *,
    results: Path | None = None,
) -> RatesReport:
    options, progress = options or GateOptions(), progress or Silent()
    require_references(utterances)
    normaliser, tokeniser = get_normaliser(options.normaliser), Tokeniser(options.korean)
    with Results(results, utterances, head_of({"candidate": side}, options.data)) as kept:
        fill(kept, "candidate", side, progress, listed=options.data.get("list"))
        said = kept.answers("candidate")
        scorer = Scorer(normaliser, tokeniser, utterances, said, said)
        scored, tally = _scored(scorer, utterances, progress)
        kept.put_scores(f"{normaliser.id} {tokeniser.id}", score_lines(utterances, scored))
        wrong = sorted((one for one in scored if one.candidate.errors), key=lambda one: -one.candidate.errors)
        worst = tuple(scorer.show(one) for one in wrong[: options.worst])
        alone = alone_compared(
            side, said, utterances, options, lambda text: tokeniser(normaliser(text)), progress
        )
    score = tally.score(side, alone, resamples=options.resamples, seed=options.seed)
    columns = {name: labels_of(utterances, name) for name in options.columns}
    groups = {
        "language": ([one.language for one in scored], ()),
        "duration": ([duration_bucket(one.duration_s) for one in scored], DURATION_BUCKETS),
    } | columns
    whole = _rate("all", scored, options)
    return RatesReport(
        score=score,
        whole=whole,
        by={name: _rates(scored, *labels, options) for name, labels in groups.items()},
        worst=worst,
        checks=(
            *audio_check(
                [error for one, error in score.failed if one in score.bad_audio],
                (),
                len(utterances),
                options.data.get("list"),
            ),
            failures_check(side.name, score.own_failed, len(utterances)),
            *alone_check(side.name, alone, options),
        ),
        warnings=_warnings(side, whole, options),
        options=options,
        normaliser=normaliser.id,
        tokeniser=tokeniser,
        machine=machine(),
    )


def _scored(
    scorer: Scorer, utterances: Sequence[Utterance], progress: Progress
) -> tuple[list[Scored], SideTally]:
    progress.stage("Scoring", total=len(utterances))
    scored, tally = [], SideTally()
    for index, utterance in enumerate(utterances):
        one = scorer.score(index)
        scored.append(one)
        tally.add(utterance, scorer.candidate[index], one.candidate)
        progress.advance()
    return scored, tally


def _rates(
    scored: Sequence[Scored], labels: Sequence[str], order: Sequence[str], options: GateOptions
) -> tuple[Rate, ...]:
    members: dict[str, list[Scored]] = {}
    for label, one in zip(labels, scored, strict=True):
        members.setdefault(label, []).append(one)
    known = [label for label in order if label in members]
    rest = sorted(members.keys() - set(known), key=lambda label: (-len(members[label]), label))
    return tuple(_rate(label, members[label], options) for label in (*known, *rest))


def _rate(name: str, members: Sequence[Scored], options: GateOptions) -> Rate:
    languages = {one.language for one in members}
    counts = [one.candidate for one in members]
    return Rate(
        name,
        metric_of((one.metric for one in members), languages.pop() if len(languages) == 1 else None),
        len(members),
        total(counts),
        rate_interval(
            np.array([one.errors for one in counts], dtype=np.int64),
            np.array([one.reference_tokens for one in counts], dtype=np.int64),
            resamples=options.resamples,
            seed=options.seed,
        ),
    )


def _warnings(side: Side, whole: Rate, options: GateOptions) -> tuple[str, ...]:
    reference = amount(whole.counts.reference_tokens, whole.metric)
    return (
        *options.notes,
        *([] if side.note is None else [f"{side.name}: {side.note}"]),
        *few_utterances(whole.utterances, reference),
    )


# --- for machines --------------------------------------------------------------------------------


def to_json(report: RatesReport) -> dict[str, Any]:
    side, score, options = report.score.side, report.score, report.options
    return {
        "schema": SCHEMA,
        "exit_code": report.exit_code,
        **side.to_json(),
        "normaliser": report.normaliser,
        "tokeniser": report.tokeniser.id,
        **_as_json(report.whole),
        "by": {name: {one.name: _as_json(one) for one in rates} for name, rates in report.by.items()},
        "empty_answers": score.empty,
        "punctuation": score.punctuation,
        "failed": [{"id": one, "error": error} for one, error in score.failed],
        "checks": [
            {"name": one.name, "value": one.value, "limit": one.limit, "passed": one.passed, "message": one.message}
            for one in report.checks
        ],
        "warnings": list(report.warnings),
        "worst": [
            {
                "id": one.id,
                "language": one.language,
                "duration_s": one.duration_s,
                "reference": one.raw[0],
                "text": one.raw[2],
                "normalised": {"reference": one.normalised[0], "text": one.normalised[2]},
                "errors": one.candidate.errors,
            }
            for one in report.worst
        ],
        "conditions": dict(side.conditions) | dict(report.machine),
        "bootstrap": {"resamples": options.resamples, "seed": options.seed, "level": 0.95},
        "data": dict(options.data),
    }  # fmt: skip


def _as_json(rate: Rate) -> dict[str, Any]:
    low, high = _bounds(rate)
    return {
        "metric": rate.metric,
        "utterances": rate.utterances,
        "reference_tokens": rate.counts.reference_tokens,
        "errors": rate.counts.errors,
        "substitutions": rate.counts.substitutions,
        "deletions": rate.counts.deletions,
        "insertions": rate.counts.insertions,
        "rate_percent": percent(rate.counts),
        "rate_ci_low_percent": low,
        "rate_ci_high_percent": high,
    }


def _bounds(rate: Rate) -> tuple[float | None, float | None]:
    if rate.interval is None or not math.isfinite(rate.interval.high):
        return None, None
    return 100.0 * rate.interval.low, 100.0 * rate.interval.high


# --- for people ----------------------------------------------------------------------------------


def render(report: RatesReport) -> RenderableType:
    from rich.console import Group as Stack
    from rich.text import Text

    whole = report.whole
    size = amount(whole.counts.reference_tokens, whole.metric)
    parts: list[RenderableType] = [
        Text(f"{report.score.side.name}: {whole.metric} {_figure(whole)} on {size}", style="bold"),
        *(Text(f"! {one.message}", style="red") for one in report.checks if one.passed is False),
        *(Text(f"! {one}", style="yellow") for one in report.warnings),
        Text(f"compared after normaliser {report.normaliser}, {report.tokeniser.id}", style="dim"),
        *(_table(f"By {name}", rates) for name, rates in report.by.items()),
        *_worst(report),
    ]
    return Stack(*parts)


def _table(title: str, rates: Sequence[Rate]) -> Table:
    metrics = {rate.metric for rate in rates}
    one = metrics.pop() if len(metrics) == 1 else None
    columns = (
        Column("", text=True),
        Column("utterances"),
        Column(units(one or "MER")),
        Column(f"{one or 'error rate'} % (95 % interval)"),
        Column("wrong / missing / extra", yields=True),
    )
    table = Table(title, columns)
    for rate in rates:
        counts = rate.counts
        table.add(
            rate.name if one else f"{rate.name} ({rate.metric})",
            f"{rate.utterances:,}",
            f"{counts.reference_tokens:,}",
            _figure(rate).replace(" %", ""),
            f"{counts.substitutions:,} / {counts.deletions:,} / {counts.insertions:,}",
        )
    return table


def _figure(rate: Rate) -> str:
    value, (low, high) = percent(rate.counts), _bounds(rate)
    if value is None or low is None or high is None:
        return "n/a"
    return f"{value:.2f} % ({low:.2f} to {high:.2f})"


def _worst(report: RatesReport) -> list[RenderableType]:
    from rich.text import Text

    if not report.worst:
        return []
    parts: list[RenderableType] = [
        Text("\nWorst utterances", style="bold"),
        Text("{right→given} wrong, {-word} missing, {+word} extra", style="dim"),
    ]
    for one in report.worst:
        reference, _, given = (report.tokeniser(text) for text in one.normalised)
        parts.append(Text(one.id, style="cyan"))
        parts.append(Text("  " + (_marked(reference, given) or "(empty)")))
    return parts


def _marked(reference: Sequence[str], given: Sequence[str]) -> str:
    marks = {"equal": "{1}", "replace": "{{{0}→{1}}}", "delete": "{{-{0}}}", "insert": "{{+{1}}}"}
    return " ".join(
        marks[chunk.kind].format(join_tokens(chunk.reference), join_tokens(chunk.hypothesis))
        for chunk in align(reference, given)
    )
