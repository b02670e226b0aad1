"""A gate report in the terminal, as a rich renderable.

Knows the order and the colours. Knows nothing of how figures were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from svtool.errors import counted
from svtool.wer.gate import GateReport
from svtool.wer.groups import Worst
from svtool.wer.score import Tokeniser
from svtool.wer.tables import ROLES, conditions_table, groups_table, marks, sides_table, signals_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_COLOURS = {"pass": "green", "fail": "red", "inconclusive": "yellow"}


def render(report: GateReport) -> RenderableType:
    from rich.console import Group as Stack

    parts: list[RenderableType] = [
        _verdict_panel(report),
        sides_table(report),
        signals_table(report),
        groups_table("By language", report.by_language),
        groups_table("By duration", report.by_duration),
        *(groups_table(f"By {name}", groups) for name, groups in report.by_column.items()),
        *_worst_list(report),
        conditions_table(report),
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
    for role, text in zip(ROLES, (baseline, candidate), strict=True):
        texts.add_row(role, _marked(tokeniser(reference), tokeniser(text)))
    given = one.raw[2]
    if given != candidate:
        texts.add_row("as given", Text(given if given.isprintable() else repr(given)), style="dim")
    return [head, texts]


def _marked(reference: Sequence[str], hypothesis: Sequence[str]) -> Text:
    """Marks that can be read without colours too: reports are piped into files and issues."""
    from rich.text import Text

    marked = Text()
    for shown, wrong in marks(reference, hypothesis):
        marked.append("" if not marked.plain else " ").append(shown, style="red" if wrong else "")
    return marked if marked.plain else Text("(empty)")
