"""Tables that stay readable and complete at any width: what has no room beside goes beneath, nothing is cut.

Knows text and columns of the terminal. Knows nothing of what the figures mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_GAP = "  "
_INDENT = " "
_SHORT = 12  # cells of a text that stays whole; a longer word may be broken when it takes a third of the line


@dataclass(frozen=True)
class Column:
    """`text` folds between words, other cells stay on one line. A column that `yields` goes beneath its row first."""

    name: str
    text: bool = False
    yields: bool = False


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

    def lines(self, width: int) -> list[str]:
        """Columns where they fit, but for one that may stand beneath its row; else one figure under the other."""
        beside = self._beside(width)
        if beside is None:
            return self._stacked(width)
        widths = self._widths(beside, width)
        header = [self.columns[index].name for index in beside]
        found = []
        if any(header):
            found = self._line(beside, header, widths)
            found.append(_INDENT + "─" * (sum(widths) + len(_GAP) * (len(widths) - 1)))
        for row in self.rows:
            found += self._line(beside, [row[index] for index in beside], widths)
            found += self._beneath(row, [one for one in range(len(row)) if one not in beside], width)
        return found

    def _beside(self, width: int) -> list[int] | None:
        every = list(range(len(self.columns)))
        fewer = [index for index in every if not self.columns[index].yields]
        return next((kept for kept in (every, fewer) if self._fits(kept, width)), None)

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
        """A terminal too narrow for columns: one cell under the other."""
        found = []
        for row in self.rows:
            found += folded(row[0], width)
            found += self._beneath(row, range(1, len(row)), width)
        return found

    def _beneath(self, row: Sequence[str], indices: Iterable[int], width: int) -> list[str]:
        found = []
        for index in indices:
            name, cell = self.columns[index].name, row[index]
            said = f"{name}: {cell}" if name else cell
            if cell and _cells(said) <= width - len(_GAP):
                found.append(_GAP + said)
            elif cell:  # a figure is not parted for its name's sake
                heading = folded(f"{name}:", width - len(_GAP)) if name else []
                found += [_GAP + line for line in heading]
                found += [2 * _GAP + line for line in folded(cell, width - 2 * len(_GAP))]
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
