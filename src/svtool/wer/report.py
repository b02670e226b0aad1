"""A gate report for machines (strict JSON) and for people (a rich renderable).

Knows the published schema and how to show it. Knows nothing of how figures were measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from svtool.errors import SvtoolError
from svtool.wer.checks import AloneCheck, Check, percent
from svtool.wer.gate import GateReport, SideScore
from svtool.wer.groups import Group, Worst
from svtool.wer.score import Counts, Interval, Tokeniser, align, join_tokens
from svtool.wer.sides import SHARED_CONDITIONS

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

SCHEMA = "svtool.validate-wer/1"
# Two reports are comparable only when these are equal in both.
COMPARABLE = ("schema", "normaliser", "tokeniser")
_COLOURS = {"pass": "green", "fail": "red", "inconclusive": "yellow"}


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
        "sqnr_note": _sqnr_note(report),
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
        "worst": [_worst(one) for one in report.worst],
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


def _sqnr_note(report: GateReport) -> str | None:
    if report.sqnr_db is None:
        return "not measured"
    if math.isfinite(report.sqnr_db):
        return None
    return (
        "infinite: the logits are identical"
        if report.sqnr_db > 0
        else "logits are not finite or hold no signal"
    )


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
        "name": side.name,
        "artifact": str(side.artifact) if side.artifact else None,
        "sha256": side.digest,
        "provider": side.provider,
        "executed": side.executed,
        "note": side.note,
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


def _worst(one: Worst) -> dict[str, Any]:
    reference, baseline, candidate = one.raw
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
    }


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


# --- for people --------------------------------------------------------------------------------


def render(report: GateReport) -> RenderableType:
    from rich.console import Group as Stack

    parts: list[RenderableType] = [
        _verdict_panel(report),
        _sides_table(report),
        _signals_table(report),
        _groups_table("By language", report.by_language),
        _groups_table("By duration", report.by_duration),
        *(_groups_table(f"By {name}", groups) for name, groups in report.by_column.items()),
        *_worst_list(report),
        _provenance(report),
    ]
    return Stack(*parts)


def _verdict_panel(report: GateReport) -> RenderableType:
    from rich.panel import Panel
    from rich.text import Text

    colour = _COLOURS[report.verdict]
    text = Text()
    for index, reason in enumerate(report.reasons):
        text.append(("\n" if index else "") + reason)
    for warning in report.warnings:
        text.append(f"\n! {warning}", style="yellow")
    title = Text(f" {report.verdict.upper()} ", style=f"bold reverse {colour}")
    return Panel(text, title=title, title_align="left", border_style=colour, padding=(0, 1))


def _table(title: str, columns: Iterable[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1))
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", overflow="fold")
    return table


def _sides_table(report: GateReport) -> Table:
    metric = report.whole.metric
    table = _table("Both sides", ("", "errors/tokens", f"{metric} % (95 %)", "sub/del/ins", "ran on"))
    for role, score in (("baseline", report.baseline), ("candidate", report.candidate)):
        counts = score.counts
        table.add_row(
            _plain(f"{role}  {score.side.name}"),
            f"{counts.errors}/{counts.reference_tokens}",
            _with_interval(percent(counts), score.interval, scale=100.0),
            f"{counts.substitutions}/{counts.deletions}/{counts.insertions}",
            _plain(("" if score.side.executed else "twin: ") + _short_provider(score.side.provider)),
        )
    return table


def _signals_table(report: GateReport) -> Table:
    options, interval = report.options, report.whole.interval
    table = _table("Signals", ("signal", "value", "limit"))
    drift = _with_interval(report.whole.drift, interval, signed=True)
    table.add_row("drift, points (95 %)", drift, f"≤ {options.budget:g}")
    if interval:
        table.add_row("probability that drift exceeds the budget", f"{100 * interval.exceeds:.1f} %", "")
    where = f" ({' = '.join(options.disagreement_where)} is judged)" if options.disagreement_where else ""
    limit = "" if options.max_disagreement is None else f"≤ {options.max_disagreement:g} %"
    differing = f"{_figure(report.disagreement)} %, {report.differing} texts differ"
    table.add_row(_plain(f"disagreement with the baseline{where}"), differing, limit)
    sqnr = _sqnr_note(report) or f"{report.sqnr_db:.1f} dB"
    table.add_row(
        "SQNR of logits", sqnr, "" if options.min_sqnr_db is None else f"≥ {options.min_sqnr_db:g} dB"
    )
    for tag, agreement in report.tag_agreement.items():
        if agreement is not None:
            table.add_row(f"same {tag} tag", f"{agreement:.1f} %", "")
    punctuation = f"{report.baseline.punctuation} → {report.candidate.punctuation}"
    table.add_row("punctuation characters", punctuation, "")
    for role, score in (("baseline", report.baseline), ("candidate", report.candidate)):
        if score.alone is not None:
            differing = f"{len(score.alone.differing)} of {score.alone.utterances} differ"
            table.add_row(f"{role} at batch 1", differing, f"≤ {options.max_alone_disagreement:g} %")
    return table


def _groups_table(title: str, groups: Sequence[Group]) -> Table:
    """Narrow enough for 80 columns: a drift that wraps is not read."""
    table = _table(title, ("", "utt.", "tokens", "rate %", "drift (95 %)", "Δ S/D/I"))
    for group in groups:
        before, after = group.baseline, group.candidate
        pairs = (
            (before.substitutions, after.substitutions),
            (before.deletions, after.deletions),
            (before.insertions, after.insertions),
        )
        table.add_row(
            _plain(f"{group.name} {group.metric}"),
            str(group.utterances),
            str(before.reference_tokens),
            f"{_figure(percent(before))} → {_figure(percent(after))}",
            _with_interval(group.drift, group.interval, signed=True),
            "/".join(f"{now - then:+d}" for then, now in pairs),
        )
    return table


def _worst_list(report: GateReport) -> list[RenderableType]:
    from rich.text import Text

    if not report.worst:
        return []
    lines = Text("Worst utterances", style="bold")
    legend = " (wrong words in red, missing ones struck out, extra ones underlined)\n"
    lines.append(legend, style="not bold dim")
    for one in report.worst:
        lines.append_text(_worst_entry(one, report.tokeniser))
    return [lines]


def _worst_entry(one: Worst, tokeniser: Tokeniser) -> Text:
    from rich.text import Text

    reference, baseline, candidate = one.normalised
    entry = Text(style="not bold")
    entry.append(f"{one.id}", style="cyan")
    entry.append(f"  {one.language}, errors {one.baseline.errors} → {one.candidate.errors}", style="dim")
    entry.append(f"  raw candidate: {one.raw[2]!r}\n", style="dim")
    entry.append(f"  reference  {reference}\n")
    for role, text in (("baseline ", baseline), ("candidate", candidate)):
        entry.append(f"  {role}  ").append_text(_marked(tokeniser(reference), tokeniser(text))).append("\n")
    return entry


def _marked(reference: Sequence[str], hypothesis: Sequence[str]) -> Text:
    from rich.text import Text

    styles = {"equal": "", "replace": "red", "insert": "red underline", "delete": "red strike"}
    marked = Text()
    for chunk in align(reference, hypothesis):
        shown = chunk.reference if chunk.kind == "delete" else chunk.hypothesis
        marked.append("" if not marked.plain else " ").append(join_tokens(shown), style=styles[chunk.kind])
    return marked


def _provenance(report: GateReport) -> Text:
    from rich.text import Text

    options = report.options
    facts = [f"normaliser {report.normaliser}, tokens {report.tokeniser.id}"]
    facts.append(f"{report.whole.utterances} utterances, {report.whole.baseline.reference_tokens} tokens")
    facts.append(f"{options.resamples} resamples, seed {options.seed}")
    for role, score in (("baseline", report.baseline), ("candidate", report.candidate)):
        used = ", ".join(f"{key} {value}" for key, value in score.side.conditions.items())
        facts.append(f"{role}: {used or 'conditions not recorded'}")
    flags = report.machine.get("cpu_flags") or ("not known",)
    facts.append(f"cpu {report.machine.get('cpu')} ({', '.join(flags)})")
    return Text(" · ".join(facts), style="dim")


def _short_provider(provider: str | None) -> str:
    """`onnxruntime: CPUExecutionProvider` -> `onnxruntime CPU`, so that the table keeps its lines."""
    return (provider or "?").removesuffix("ExecutionProvider").replace(":", "")


def _plain(text: str) -> Text:
    """Names come from users' files: square brackets in them are not markup."""
    from rich.text import Text

    return Text(text)


def _figure(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "n/a"
    shown = round(value, 2) + 0.0  # no -0.00
    return f"{shown:+.2f}" if signed else f"{shown:.2f}"


def _with_interval(
    value: float | None, interval: Interval | None, *, scale: float = 1.0, signed: bool = False
) -> str:
    if value is None or interval is None:
        return _figure(value, signed=signed)
    low, high = (_figure(scale * bound, signed=signed) for bound in (interval.low, interval.high))
    between = f"{low} to {high}" if signed else f"{low}–{high}"
    return f"{_figure(value, signed=signed)} ({between})"
