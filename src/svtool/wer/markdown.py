"""A gate report as Markdown, short enough for a comment on a pull request.

Knows Markdown as code hosts show it. Knows nothing of how figures were measured.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from svtool.errors import counted
from svtool.wer.elements import visible
from svtool.wer.gate import GateReport
from svtool.wer.groups import Group, Worst
from svtool.wer.layout import Table
from svtool.wer.score import Tokeniser
from svtool.wer.tables import (
    conditions_table,
    groups_table,
    marked,
    provenance_table,
    sides_table,
    signals_table,
)

_SIGNS = {"pass": "✅", "fail": "❌", "inconclusive": "⚠️"}
# hosts refuse comments of more than 65,536 characters, and nobody reads one
_MOST_GROUPS, _MOST_WORST, _MOST_CHARACTERS, _MOST_LINES = 12, 5, 240, 10
_MOST_OF_A_LINE = 1000  # of a reason or a warning, whose end says what to do
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$])")


def summary(report: GateReport) -> str:
    title = f"{_SIGNS[report.verdict]} {report.verdict}: {report.candidate.side.name}"
    groups = [("By language", report.by_language), ("By duration", report.by_duration)]
    groups += [(f"By {name}", found) for name, found in report.by_column.items()]
    parts = [
        f"### {_plain(title)} against {_plain(report.baseline.side.name)}",
        _plain(report.reasons[0], _MOST_OF_A_LINE) if report.reasons else "",
        _lines("", report.reasons[1:]),
        _lines("Before you trust it:", report.warnings),
        _table(signals_table(report)),
        _table(sides_table(report)),
        _folded("By language, duration and column", [_groups(*one) for one in groups if one[1]]),
        _folded("Worst utterances", _worst(report.worst, report.tokeniser)),
        _folded("How it was measured", [_table(conditions_table(report)), _table(provenance_table(report))]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _lines(title: str, lines: Sequence[str]) -> str:
    found = [f"- {_plain(line, _MOST_OF_A_LINE)}" for line in lines[:_MOST_LINES]]
    more = len(lines) - len(found)
    found += [f"- and {more:,} more"] if more else []
    return "\n".join([f"{title}\n"] * bool(title) + found) if found else ""


def _plain(text: str, most: int = _MOST_CHARACTERS) -> str:
    """One line of text as it is: no markup, and nobody is called by an `@name`, no issue by a `#1`."""
    shortened = _short(" ".join(visible(text).split()), most)
    return _SPECIAL.sub(r"\\\1", shortened).replace("@", "@\u200b").replace("://", ":\u200b//")


def _code(text: str) -> str:
    """In a table's cell even code ends at a bar, so the bar is written as its twin that ends nothing."""
    shortened = _short(" ".join(visible(text).split())).replace("|", "∣")
    runs = [len(run) for run in re.findall(r"`+", shortened)]
    fence = "`" * (max(runs, default=0) + 1)
    return f"{fence} {shortened} {fence}" if runs else f"{fence}{shortened}{fence}"


def _short(text: str, most: int = _MOST_CHARACTERS) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _table(table: Table) -> str:
    names = [column.name for column in table.columns]
    rules = ["---" if column.text else "---:" for column in table.columns]
    rows = [names, rules, *([_plain(cell) for cell in row] for row in table.rows)]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    legend = f"\n\n{_plain(table.legend)}" if table.legend else ""
    return f"**{_plain(table.title)}**{legend}\n\n{lines}"


def _groups(title: str, groups: Sequence[Group]) -> str:
    table = _table(groups_table(title, groups[:_MOST_GROUPS]))
    more = len(groups) - _MOST_GROUPS
    return f"{table}\n\nand {more:,} more, in the other reports" if more > 0 else table


def _folded(title: str, parts: Sequence[str]) -> str:
    if not parts:
        return ""
    inside = "\n\n".join(parts)
    return f"<details><summary>{title}</summary>\n\n{inside}\n\n</details>"


def _worst(worst: Sequence[Worst], tokeniser: Tokeniser) -> list[str]:
    found = [_utterance(one, tokeniser) for one in worst[:_MOST_WORST]]
    return ["`{right→given}` wrong, `{-word}` missing, `{+word}` extra", *found] if found else []


def _utterance(one: Worst, tokeniser: Tokeniser) -> str:
    reference, baseline, candidate = map(tokeniser, one.normalised)
    errors = f"{counted(one.baseline.errors, 'error')} before, {one.candidate.errors:,} after"
    lines = (
        f"- {_plain(one.id)} ({_plain(one.language)}): {errors}",
        f"  - reference {_code(one.normalised[0] or '(empty)')}",
        f"  - baseline {_code(marked(reference, baseline))}",
        f"  - candidate {_code(marked(reference, candidate))}",
    )
    return "\n".join(lines)
