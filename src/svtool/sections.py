"""A report as titled rows of label and text, readable at any width: lines break between words only.

Knows widths and colours. Knows nothing of what the rows say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

_LABEL = 16  # columns of the label beside its text
_NARROW = 60  # under this the text stands below its label
_STYLES = {"good": "green", "bad": "red", "warn": "yellow", "plain": "", "dim": "dim"}
_MARKS = {"bad": "error: ", "warn": "warning: "}  # a colour alone is lost in a file


@dataclass(frozen=True)
class Row:
    label: str  # "" = belongs to the row above
    text: str
    level: str = "plain"  # good, bad, warn, plain, dim


@dataclass(frozen=True)
class Section:
    title: str
    rows: tuple[Row, ...]


def page(sections: Sequence[Section], width: int) -> Text:
    """The report in lines of at most `width` columns; a single word that is longer stays whole."""
    from rich.text import Text

    text = Text()
    for section in sections:
        if not section.rows:
            continue
        if text:
            text.append("\n\n")
        text.append("\n".join(wrap(section.title, width)), style="bold")
        for row in section.rows:
            for line, style in _lines(row, width):
                text.append("\n").append(line, style=style)
    return text


def wrap(text: str, width: int) -> list[str]:
    """Lines of whole words. A wide character counts as the two columns it takes."""
    from rich.cells import cell_len

    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and cell_len(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _lines(row: Row, width: int) -> Iterator[tuple[str, str]]:
    style = _STYLES[row.level]
    text = row.text if row.label else _MARKS.get(row.level, "") + row.text
    beside = width >= _NARROW and len(row.label) < _LABEL
    if row.label and not beside:
        yield f"  {row.label}", "bold"
    indent = 2 + _LABEL if beside and row.label != "" else 4 if row.label else 2
    for index, line in enumerate(wrap(text, max(12, width - indent))):
        head = f"  {row.label}".ljust(indent) if beside and row.label and index == 0 else " " * indent
        yield head + line, style


def size_words(size: int) -> str:
    if size >= 2**30:
        return f"{size / 2**30:.1f} GiB"
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"
