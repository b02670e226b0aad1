"""What a gate report tells people, as tables of words: the same rows in the terminal, in Markdown and on the page.

Knows which figures belong together and how each is said. Knows nothing of terminals or HTML.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from svtool import __version__
from svtool.errors import counted
from svtool.wer.checks import AloneCheck, percent
from svtool.wer.gate import GateReport, SideScore
from svtool.wer.groups import Group
from svtool.wer.layout import Column, Table
from svtool.wer.score import Interval, align, join_tokens
from svtool.wer.sides import Plain
from svtool.wer.words import amount, signed, units

ROLES = ("baseline", "candidate")
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


def scores(report: GateReport) -> tuple[tuple[str, SideScore], ...]:
    return tuple(zip(ROLES, (report.baseline, report.candidate), strict=True))


def sides_table(report: GateReport) -> Table:
    metric = report.whole.metric
    columns = (
        Column("", text=True),
        Column("errors"),
        Column(f"{metric} % (95 % interval)"),
        Column("wrong / missing / extra", yields=True),
        Column("ran on", text=True),
    )
    kinds = units(metric)
    table = Table(
        "Both sides", columns, f"{metric}: wrong, missing and extra {kinds} per 100 of the reference"
    )
    for role, score in scores(report):
        counts = score.counts
        table.add(
            f"{role} {score.side.name}",
            f"{counts.errors:,} of {counts.reference_tokens:,}",
            with_interval(percent(counts), score.interval, scale=100.0),
            f"{counts.substitutions:,} / {counts.deletions:,} / {counts.insertions:,}",
            _short_provider(score.side.provider) + _in_place(score),
        )
    return table


def _in_place(score: SideScore) -> str:
    """What stood in for the artifact itself."""
    if score.side.executed:
        return ""
    return " (saved texts)" if "saved_texts" in score.side.conditions else " (twin)"


def signals_table(report: GateReport) -> Table:
    options, interval = report.options, report.whole.interval
    columns = (Column("signal", text=True), Column("value", text=True), Column("limit"))
    legend = f"drift: the candidate's {report.whole.metric} minus the baseline's, in percentage points"
    table = Table("Signals", columns, legend)
    drift = with_interval(report.whole.drift, interval, plus=True)
    table.add("drift (95 % interval), points", drift, f"≤ {options.budget:g}")
    if interval:
        table.add("chance that drift is above the limit", f"{100 * interval.exceeds:.1f} %", "")
    for row in _disagreement_rows(report):
        table.add(*row)
    sqnr = sqnr_note(report) or f"{report.sqnr_db:.1f} dB"
    limit = "" if options.min_sqnr_db is None else f"≥ {round(options.min_sqnr_db, 2):g} dB"
    table.add("signal to noise of the raw scores (SQNR)", sqnr, limit)
    if options.min_sqnr_why:
        table.add("that limit is", options.min_sqnr_why, "")
    for tag, agreement in report.tag_agreement.items():
        if agreement is not None:
            table.add(_TAG_NAMES[tag], f"{agreement:.1f} % of utterances", "")
    punctuation = f"baseline {report.baseline.punctuation:,}, candidate {report.candidate.punctuation:,}"
    table.add("punctuation marks in all texts", punctuation, "")
    for role, score in scores(report):
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
        f"{figure(report.disagreement)} %, in {changed}",
    )
    if options.disagreement_where is None or not limit:
        return [(*everywhere, limit)]
    column, value = options.disagreement_where
    judged = next((check.value for check in report.checks if check.name == "disagreement"), None)
    return [(*everywhere, ""), (f"the same, only where {column} is {value}", f"{figure(judged)} %", limit)]


def _alone_cells(alone: AloneCheck, report: GateReport) -> tuple[str, str]:
    changed = f"{len(alone.differing)} of {alone.utterances}"
    share = (
        "" if alone.disagreement is None else f", {alone.disagreement:.2f} % of {units(report.whole.metric)}"
    )
    return changed + share, f"≤ {report.options.max_alone_disagreement:g} %"


def groups_table(title: str, groups: Sequence[Group]) -> Table:
    metrics = {group.metric for group in groups}
    one = metrics.pop() if len(metrics) == 1 else None
    columns = (
        Column("", text=True),
        Column("utterances"),
        Column(units(one or "MER")),
        Column(f"{one or 'error rate'} % before → after"),
        Column("drift (95 % interval), points"),
        Column("more wrong / missing / extra", yields=True),
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
            f"{figure(percent(before))} → {figure(percent(after))}",
            with_interval(group.drift, group.interval, plus=True),
            " / ".join(f"{now - then:+,d}" for then, now in pairs),
        )
    return table


def sqnr_note(report: GateReport) -> str | None:
    if report.sqnr_db is None:
        return "not measured"
    if math.isfinite(report.sqnr_db):
        return None
    return (
        "infinite: the logits are identical"
        if report.sqnr_db > 0
        else "logits are not finite or hold no signal"
    )


def conditions_table(report: GateReport) -> Table:
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


def provenance_table(report: GateReport) -> Table:
    """What exactly was compared, so that a report can be traced to its files."""
    table = Table("Provenance", (Column("", text=True), Column("", text=True)))
    for role, score in scores(report):
        side = score.side
        for name, value in (
            ("", str(side.artifact) if side.artifact else side.name),
            (", SHA-256", side.digest),
            (", SHA-256 of what ran", side.ran_digest if side.ran_digest != side.digest else None),
            (" ran on", side.provider or "not known"),
            (", to note", side.note),
        ):
            if value:
                table.add(f"{role}{name}", value)
    for key, value in report.options.data.items():
        table.add("data" if key == "list" else f"data, {key.replace('sha256', 'SHA-256')}", value)
    table.add("normaliser", report.normaliser)
    table.add("tokeniser", report.tokeniser.id)
    table.add("Unicode tables", str(report.machine.get("unicode")))
    table.add("svtool", __version__)
    return table


def figure(value: float | None, *, plus: bool = False, digits: int = 2) -> str:
    if value is None:
        return "n/a"
    return signed(value) if plus else f"{value:.{digits}f}"


def drift_words(group: Group) -> tuple[str, str]:
    """The drift and its interval apart, for those who set them apart."""
    if group.interval is None:
        return figure(group.drift, plus=True), ""
    return figure(group.drift, plus=True), f"{signed(group.interval.low)} to {signed(group.interval.high)}"


def with_interval(
    value: float | None, interval: Interval | None, *, scale: float = 1.0, plus: bool = False
) -> str:
    if value is None or interval is None:
        return figure(value, plus=plus)
    low, high = (figure(scale * bound, plus=plus) for bound in (interval.low, interval.high))
    return f"{figure(value, plus=plus)} ({low} to {high})"


def marked(reference: Sequence[str], hypothesis: Sequence[str]) -> str:
    """Marks that are read without colours."""
    return " ".join(shown for shown, _ in marks(reference, hypothesis)) or "(empty)"


def marks(reference: Sequence[str], hypothesis: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """(text, whether it is an error) of each part of an alignment."""
    for chunk in align(reference, hypothesis):
        right, given = join_tokens(chunk.reference), join_tokens(chunk.hypothesis)
        match chunk.kind:
            case "equal":
                yield given, False
            case "replace":
                yield f"{{{right}→{given}}}", True
            case "insert":
                yield f"{{+{given}}}", True
            case "delete":
                yield f"{{-{right}}}", True
