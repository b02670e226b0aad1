"""Tables that stay readable at any width: cells fold between words, and what has no room is named, not cut.

Knows text and columns of the terminal. Knows nothing of what the figures mean.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_GAP = "  "
_INDENT = " "
_SHORT = 12  # cells of a text that stays whole; a longer word may be broken when it takes a third of the line


@dataclass(frozen=True)
class Column:
    """`text` folds between words, other cells stay on one line. The highest `drop` is the first left out."""

    name: str
    text: bool = False
    drop: int = 0  # 0 = never left out


class Table:
    """A title, rows of cells, and perhaps one line that explains them."""

    def __init__(self, title: str, columns: Sequence[Column], legend: str = "") -> None:
        self.title, self.columns, self.legend = title, tuple(columns), legend
        self.rows: list[tuple[str, ...]] = []

    def add(self, *cells: str) -> None:
        self.rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        width = options.max_width
        yield Text()
        yield Text("\n".join(folded(self.title, width)), style="bold")
        if self.legend:
            yield Text("\n".join(folded(self.legend, width)), style="dim")
        yield from (Text(line, no_wrap=True, overflow="ignore") for line in self.lines(width))
        if left_out := self._left_out(width):
            yield Text("\n".join(folded(left_out, width)), style="dim")

    def lines(self, width: int) -> list[str]:
        kept = self._kept(width)
        if not self._fits(kept, width):
            return self._stacked(width)
        widths = self._widths(kept, width)
        header = [self.columns[index].name for index in kept]
        found = self._line(kept, header, widths)
        if any(header):
            found.append(_INDENT + "─" * (sum(widths) + len(_GAP) * (len(widths) - 1)))
        else:
            found.clear()
        for row in self.rows:
            found += self._line(kept, [row[index] for index in kept], widths)
        return found

    def _left_out(self, width: int) -> str:
        kept = self._kept(width)
        names = [column.name for index, column in enumerate(self.columns) if index not in kept]
        return f"(too narrow for: {'; '.join(names)})" if names and self._fits(kept, width) else ""

    def _kept(self, width: int) -> list[int]:
        kept = list(range(len(self.columns)))
        while not self._fits(kept, width):
            droppable = [index for index in kept if self.columns[index].drop]
            if not droppable:
                break
            kept.remove(max(droppable, key=lambda index: self.columns[index].drop))
        return kept

    def _fits(self, kept: Sequence[int], width: int) -> bool:
        return sum(self._minimum(index, width) for index in kept) <= _room(kept, width)

    def _minimum(self, index: int, width: int) -> int:
        column, cells = self.columns[index], [row[index] for row in self.rows]
        whole = [cell for cell in cells if not column.text or _cells(cell) <= _SHORT]
        words = [word for cell in cells for word in cell.split()]
        longest = max(map(_cells, words), default=1)
        needed = [*map(_cells, whole), *map(_cells, column.name.split())]
        return max([min(longest, max(_SHORT, width // 3)), *needed])

    def _widths(self, kept: Sequence[int], width: int) -> list[int]:
        """Everybody's minimum, and what is left goes to the narrowest that lacks something: figures stay whole."""
        widths = [self._minimum(index, width) for index in kept]
        wanted = [
            max(map(_cells, (self.columns[index].name, *(row[index] for row in self.rows)))) for index in kept
        ]
        for _ in range(_room(kept, width) - sum(widths)):
            lacking = [at for at, has in enumerate(widths) if has < wanted[at]]
            if not lacking:
                break
            widths[min(lacking, key=widths.__getitem__)] += 1
        return widths

    def _line(self, kept: Sequence[int], cells: Sequence[str], widths: Sequence[int]) -> list[str]:
        columns = [folded(cell, width) for cell, width in zip(cells, widths, strict=True)]
        found = []
        for at in range(max(map(len, columns))):
            parts = []
            for index, column, width in zip(kept, columns, widths, strict=True):
                part = column[at] if at < len(column) else ""
                pad = " " * (width - _cells(part))
                parts.append(part + pad if self.columns[index].text else pad + part)
            found.append((_INDENT + _GAP.join(parts)).rstrip())
        return found

    def _stacked(self, width: int) -> list[str]:
        """A terminal too narrow for any table: one cell under the other."""
        found = []
        for row in self.rows:
            found += folded(row[0], width)
            for column, cell in zip(self.columns[1:], row[1:], strict=True):
                said = f"{column.name}: {cell}" if column.name else cell
                found += [_GAP + line for line in folded(said, width - len(_GAP))] if cell else []
        return found


def folded(text: str, width: int) -> list[str]:
    """Lines of at most `width` cells, broken between words wherever a word fits on a line at all."""
    lines, line = [], ""
    for word in text.split():
        if line and _cells(line) + 1 + _cells(word) <= width:
            line += f" {word}"
            continue
        if line:
            lines.append(line)
        *full, line = _broken(word, width)
        lines += full
    return [*lines, line]


def _broken(word: str, width: int) -> list[str]:
    """A word longer than a line: parted after its punctuation (names are `a-b_c.d`), else anywhere."""
    from rich.cells import chop_cells

    parts = [""]
    for piece in re.findall(r"[^-_./\\]*[-_./\\]|[^-_./\\]+", word):
        for bit in chop_cells(piece, max(2, width)):
            if _cells(parts[-1] + bit) <= width:
                parts[-1] += bit
            else:
                parts.append(bit)
    return [part for part in parts if part] or [""]


def _room(kept: Sequence[int], width: int) -> int:
    return width - len(_INDENT) - len(_GAP) * (len(kept) - 1)


def _cells(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)
