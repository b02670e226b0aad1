"""A gate report for machines (strict JSON) and for people (a rich renderable).

Knows the published schema and how to show it. Knows nothing of how figures were measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from svtool.errors import SvtoolError, counted
from svtool.wer.checks import AloneCheck, Check, percent
from svtool.wer.gate import GateReport, SideScore
from svtool.wer.groups import Group, Worst
from svtool.wer.layout import Column, Table
from svtool.wer.score import Counts, Interval, Tokeniser, align, join_tokens
from svtool.wer.sides import SHARED_CONDITIONS, Plain
from svtool.wer.words import amount, signed, units

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

SCHEMA = "svtool.validate-wer/1"
# Two reports are comparable only when these are equal in both.
COMPARABLE = ("schema", "normaliser", "tokeniser")
_ROLES = ("baseline", "candidate")
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

_TAG_NAMES = {
    "language": "same language recognised",
    "emotion": "same emotion tag",
    "events": "same sound event tags",
    "itn": "same punctuation (ITN) tag",
}
_CONDITION_NAMES: dict[str, tuple[str, Callable[[Plain], str]]] = {
    "segmentation": ("pieces of long audio", str),
    "frontend": ("audio features", str),
    "dither": ("noise added (dither)", lambda value: str(value) if value else "none"),
    "language": ("language hint", str),
    "itn": ("digits, punctuation (ITN)", lambda value: "on" if value else "off"),
    "batch_size_n": ("utterances in a batch", lambda value: f"at most {value}"),
    "batch_size_s": ("audio in a batch", lambda value: f"at most {value:g} s, padding included"),
    "precision": ("precision", str),
    "int8_arithmetic": ("int8 arithmetic", str),
}


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
        _conditions_table(report),
    ]
    return Stack(*parts)


def _scores(report: GateReport) -> tuple[tuple[str, SideScore], ...]:
    return tuple(zip(_ROLES, (report.baseline, report.candidate), strict=True))


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


def _sides_table(report: GateReport) -> Table:
    metric = report.whole.metric
    columns = (
        Column("", text=True),
        Column("errors", drop=2),
        Column(f"{metric} % (95 % interval)"),
        Column("wrong / missing / extra", drop=3),
        Column("ran on", text=True, drop=1),
    )
    kinds = units(metric)
    table = Table(
        "Both sides", columns, f"{metric}: wrong, missing and extra {kinds} per 100 of the reference"
    )
    for role, score in _scores(report):
        counts = score.counts
        table.add(
            f"{role} {score.side.name}",
            f"{counts.errors:,} of {counts.reference_tokens:,}",
            _with_interval(percent(counts), score.interval, scale=100.0),
            f"{counts.substitutions:,} / {counts.deletions:,} / {counts.insertions:,}",
            _short_provider(score.side.provider) + ("" if score.side.executed else " (twin)"),
        )
    return table


def _signals_table(report: GateReport) -> Table:
    options, interval = report.options, report.whole.interval
    columns = (Column("signal", text=True), Column("value", text=True), Column("limit"))
    legend = f"drift: the candidate's {report.whole.metric} minus the baseline's, in percentage points"
    table = Table("Signals", columns, legend)
    drift = _with_interval(report.whole.drift, interval, plus=True)
    table.add("drift (95 % interval), points", drift, f"≤ {options.budget:g}")
    if interval:
        table.add("chance that drift is above the limit", f"{100 * interval.exceeds:.1f} %", "")
    for row in _disagreement_rows(report):
        table.add(*row)
    sqnr = _sqnr_note(report) or f"{report.sqnr_db:.1f} dB"
    limit = "" if options.min_sqnr_db is None else f"≥ {options.min_sqnr_db:g} dB"
    table.add("signal to noise of the raw scores (SQNR)", sqnr, limit)
    for tag, agreement in report.tag_agreement.items():
        if agreement is not None:
            table.add(_TAG_NAMES[tag], f"{agreement:.1f} % of utterances", "")
    punctuation = f"baseline {report.baseline.punctuation:,}, candidate {report.candidate.punctuation:,}"
    table.add("punctuation marks in all texts", punctuation, "")
    for role, score in _scores(report):
        if score.alone is not None:
            table.add(f"{role}: texts that change without batching", *_alone_cells(score.alone, report))
    return table


def _disagreement_rows(report: GateReport) -> list[tuple[str, str, str]]:
    """The limit stands on the row of the utterances that it judges."""
    options, kinds = report.options, units(report.whole.metric)
    limit = "" if options.max_disagreement is None else f"≤ {options.max_disagreement:g} %"
    changed = f"{report.differing:,} of {counted(report.whole.utterances, 'text')}"
    everywhere = (
        f"{kinds} that the candidate changed in the baseline's texts",
        f"{_figure(report.disagreement)} %, in {changed}",
    )
    if options.disagreement_where is None or not limit:
        return [(*everywhere, limit)]
    column, value = options.disagreement_where
    judged = next((check.value for check in report.checks if check.name == "disagreement"), None)
    return [(*everywhere, ""), (f"the same, only where {column} is {value}", f"{_figure(judged)} %", limit)]


def _alone_cells(alone: AloneCheck, report: GateReport) -> tuple[str, str]:
    changed = f"{len(alone.differing)} of {alone.utterances}"
    share = (
        "" if alone.disagreement is None else f", {alone.disagreement:.2f} % of {units(report.whole.metric)}"
    )
    return changed + share, f"≤ {report.options.max_alone_disagreement:g} %"


def _groups_table(title: str, groups: Sequence[Group]) -> Table:
    metrics = {group.metric for group in groups}
    one = metrics.pop() if len(metrics) == 1 else None
    columns = (
        Column("", text=True),
        Column("utterances", drop=2),
        Column(units(one or "MER"), drop=3),
        Column(f"{one or 'error rate'} % before → after", drop=1),
        Column("drift (95 % interval), points"),
        Column("more wrong / missing / extra", drop=4),
    )
    table = Table(title, columns)
    for group in groups:
        before, after = group.baseline, group.candidate
        pairs = (
            (before.substitutions, after.substitutions),
            (before.deletions, after.deletions),
            (before.insertions, after.insertions),
        )
        table.add(
            group.name if one else f"{group.name} ({group.metric})",
            f"{group.utterances:,}",
            f"{before.reference_tokens:,}",
            f"{_figure(percent(before))} → {_figure(percent(after))}",
            _with_interval(group.drift, group.interval, plus=True),
            " / ".join(f"{now - then:+,d}" for then, now in pairs),
        )
    return table


def _worst_list(report: GateReport) -> list[RenderableType]:
    from rich.text import Text

    if not report.worst:
        return []
    legend = "{right→given} wrong, {-word} missing, {+word} extra. Compared is what the normaliser left;"
    legend += " `as given` is the candidate's own text where that differs."
    parts: list[RenderableType] = [Text("\nWorst utterances", style="bold"), Text(legend, style="dim")]
    for one in report.worst:
        parts += _worst_entry(one, report.tokeniser)
    return parts


def _worst_entry(one: Worst, tokeniser: Tokeniser) -> list[RenderableType]:
    from rich.table import Table as Grid
    from rich.text import Text

    reference, baseline, candidate = one.normalised
    head = Text(one.id, style="cyan")
    length = "" if one.duration_s is None else f", {one.duration_s:.1f} s"
    errors = (
        f"{counted(one.baseline.errors, 'error')} of the baseline, {one.candidate.errors:,} of the candidate"
    )
    head.append(f"  {one.language}{length}: {errors}", style="not bold default dim")
    texts = Grid.grid(padding=(0, 0, 0, 2))
    texts.add_column(no_wrap=True)
    texts.add_column(overflow="fold")
    texts.add_row("reference", Text(reference or "(empty)"))
    for role, text in zip(_ROLES, (baseline, candidate), strict=True):
        texts.add_row(role, _marked(tokeniser(reference), tokeniser(text)))
    given = one.raw[2]
    if given != candidate:
        texts.add_row("as given", Text(given if given.isprintable() else repr(given)), style="dim")
    return [head, texts]


def _marked(reference: Sequence[str], hypothesis: Sequence[str]) -> Text:
    """Marks that can be read without colours too: reports are piped into files and issues."""
    from rich.text import Text

    marked = Text()
    for chunk in align(reference, hypothesis):
        right, given = join_tokens(chunk.reference), join_tokens(chunk.hypothesis)
        shown, style = {
            "equal": (given, ""),
            "replace": (f"{{{right}→{given}}}", "red"),
            "insert": (f"{{+{given}}}", "red"),
            "delete": (f"{{-{right}}}", "red"),
        }[chunk.kind]
        marked.append("" if not marked.plain else " ").append(shown, style=style)
    return marked if marked.plain else Text("(empty)")


def _conditions_table(report: GateReport) -> Table:
    """One row per condition, both sides on it when they differ."""
    options, whole = report.options, report.whole
    table = Table("How it was measured", (Column("", text=True), Column("", text=True)))
    size = (
        f"{counted(whole.utterances, 'utterance')}, {amount(whole.baseline.reference_tokens, whole.metric)}"
    )
    listed = options.data.get("list")
    table.add("data", f"{listed}: {size}" if listed else size)
    table.add(
        "text compared after", f"normaliser {report.normaliser}, split into words by {report.tokeniser.id}"
    )
    table.add(
        "95 % intervals", f"bootstrap over utterances, {options.resamples:,} resamples, seed {options.seed}"
    )
    before, after = report.baseline.side.conditions, report.candidate.side.conditions
    if not before and not after:
        table.add("settings", "not recorded")
    for key in dict.fromkeys((*before, *after)):
        here, there = (_condition(key, of.get(key)) for of in (before, after))
        name = _CONDITION_NAMES[key][0] if key in _CONDITION_NAMES else key.replace("_", " ")
        table.add(name, here if here == there else f"baseline {here}, candidate {there}")
    flags = ", ".join(report.machine.get("cpu_flags") or ()) or "not known"
    table.add("this machine", f"{report.machine.get('cpu')}; int8 instructions: {flags}")
    return table


def _condition(key: str, value: Plain) -> str:
    """What stands in brackets is for machines and is in the JSON."""
    if value is None:
        return "not known"
    shown = _CONDITION_NAMES[key][1] if key in _CONDITION_NAMES else str
    return shown(value).partition(" (")[0]


def _short_provider(provider: str | None) -> str:
    """`onnxruntime: CPUExecutionProvider` -> `onnxruntime CPU`, so that the table keeps its lines."""
    return (provider or "not known").removesuffix("ExecutionProvider").replace(":", "")


def _figure(value: float | None, *, plus: bool = False) -> str:
    if value is None:
        return "n/a"
    return signed(value) if plus else f"{value:.2f}"


def _with_interval(
    value: float | None, interval: Interval | None, *, scale: float = 1.0, plus: bool = False
) -> str:
    if value is None or interval is None:
        return _figure(value, plus=plus)
    low, high = (_figure(scale * bound, plus=plus) for bound in (interval.low, interval.high))
    return f"{_figure(value, plus=plus)} ({low} to {high})"
