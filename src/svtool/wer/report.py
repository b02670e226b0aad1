"""A gate report for machines: strict JSON as `schema.json` publishes it.

Knows the published keys. Knows nothing of how figures were measured, nor of how people are shown them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from svtool.errors import SvtoolError
from svtool.wer.checks import AloneCheck, Check, percent
from svtool.wer.gate import GateReport, SideScore
from svtool.wer.groups import Group, Worst
from svtool.wer.score import Counts, Tokeniser, align
from svtool.wer.sides import SHARED_CONDITIONS
from svtool.wer.tables import sqnr_note

SCHEMA = "svtool.validate-wer/1"
# Two reports are comparable only when these are equal in both.
COMPARABLE = ("schema", "normaliser", "tokeniser")


def to_json(report: GateReport) -> dict[str, Any]:
    """Strict JSON: a figure that is not a finite number is null (an infinite SQNR says so in `sqnr_note`)."""
    options, interval = report.options, report.whole.interval
    document = {
        "schema": SCHEMA,
        "verdict": report.verdict,
        "exit_code": report.exit_code,
        "drift_points": report.whole.drift,
        "ci_low": interval.low if interval else None,
        "ci_high": interval.high if interval else None,
        "budget": options.budget,
        "probability_above_budget": interval.exceeds if interval else None,
        "more_utterances": report.more_utterances,
        "disagreement": report.disagreement,
        "differing_utterances": report.differing,
        "sqnr_db": report.sqnr_db,
        "sqnr_note": sqnr_note(report),
        "metric": report.whole.metric,
        "normaliser": report.normaliser,
        "tokeniser": report.tokeniser.id,
        "utterances": report.whole.utterances,
        "words": report.whole.baseline.reference_tokens,
        "reasons": list(report.reasons),
        "warnings": list(report.warnings),
        "checks": [_check(check) for check in report.checks],
        "baseline": _side(report.baseline),
        "candidate": _side(report.candidate),
        "by_language": _groups(report.by_language),
        "by_duration": _groups(report.by_duration),
        "by_column": {name: _groups(groups) for name, groups in report.by_column.items()},
        "worst_duration": report.worst_duration,
        "tag_agreement_percent": dict(report.tag_agreement),
        "changes": {str(change): utterances for change, utterances in report.changes.items()},
        "worst": [_worst(one, report.tokeniser) for one in report.worst],
        "executed": report.executed,
        "conditions": _conditions(report),
        "bootstrap": {"resamples": options.resamples, "seed": options.seed, "level": 0.95},
        "data": dict(options.data),
    }
    finite: dict[str, Any] = _finite(document)
    return finite


def require_comparable(first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    """Reports (as JSON) whose scores mean different things are never compared."""
    for key in COMPARABLE:
        if first.get(key) != second.get(key):
            raise SvtoolError(
                f"these reports cannot be compared: {key} is {first.get(key)!r} in one and "
                f"{second.get(key)!r} in the other; run  svtool validate-wer  again for the older one"
            )


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _counts(counts: Counts) -> dict[str, Any]:
    return {
        "errors": counts.errors,
        "substitutions": counts.substitutions,
        "deletions": counts.deletions,
        "insertions": counts.insertions,
        "hits": counts.hits,
        "reference_tokens": counts.reference_tokens,
        "rate_percent": percent(counts),
    }


def _side(score: SideScore) -> dict[str, Any]:
    side, interval = score.side, score.interval
    return {
        **side.to_json(),
        **_counts(score.counts),
        "rate_ci_low_percent": 100.0 * interval.low if interval else None,
        "rate_ci_high_percent": 100.0 * interval.high if interval else None,
        "empty_answers": score.empty,
        "punctuation": score.punctuation,
        "failed": [{"id": one, "error": error} for one, error in score.failed],
        "batch_1": _alone(score.alone),
    }


def _alone(alone: AloneCheck | None) -> dict[str, Any] | None:
    if alone is None:
        return None
    differing = list(alone.differing)
    return {"utterances": alone.utterances, "differing": differing, "disagreement": alone.disagreement}


def _check(check: Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "value": check.value,
        "limit": check.limit,
        "passed": check.passed,
        "message": check.message,
    }


def _groups(groups: Sequence[Group]) -> dict[str, Any]:
    return {group.name: _group(group) for group in groups}


def _group(group: Group) -> dict[str, Any]:
    return {
        "metric": group.metric,
        "utterances": group.utterances,
        "drift_points": group.drift,
        "ci_low": group.interval.low if group.interval else None,
        "ci_high": group.interval.high if group.interval else None,
        "disagreement": percent(group.against_baseline),
        "baseline": _counts(group.baseline),
        "candidate": _counts(group.candidate),
    }


def _worst(one: Worst, tokeniser: Tokeniser) -> dict[str, Any]:
    reference, baseline, candidate = one.raw
    expected, before, after = (tokeniser(text) for text in one.normalised)
    return {
        "id": one.id,
        "language": one.language,
        "duration_s": one.duration_s,
        "reference": reference,
        "baseline": baseline,
        "candidate": candidate,
        "normalised": dict(zip(("reference", "baseline", "candidate"), one.normalised, strict=True)),
        "baseline_counts": _counts(one.baseline),
        "candidate_counts": _counts(one.candidate),
        "baseline_alignment": _alignment(expected, before),
        "candidate_alignment": _alignment(expected, after),
        "audio": str(one.audio) if one.audio else None,
    }


def _alignment(reference: Sequence[str], hypothesis: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"kind": chunk.kind, "reference": list(chunk.reference), "hypothesis": list(chunk.hypothesis)}
        for chunk in align(reference, hypothesis)
    ]


def _conditions(report: GateReport) -> dict[str, Any]:
    sides = {"baseline": report.baseline.side, "candidate": report.candidate.side}
    batching = {
        name: {key: value for key, value in side.conditions.items() if key not in SHARED_CONDITIONS}
        for name, side in sides.items()
    }
    shared = {
        key: value
        for side in sides.values()
        for key, value in side.conditions.items()
        if key in SHARED_CONDITIONS
    }
    provider = {name: side.provider for name, side in sides.items()}
    return {"batching": batching, "provider": provider, "shared": shared, **report.machine}
