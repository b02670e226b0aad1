from __future__ import annotations

import pytest
from rich.cells import cell_len

from svtool.wer.layout import Column, Table, folded


def table() -> Table:
    one = Table("Title", (Column("", text=True), Column("extra figures", yields=True), Column("drift")))
    one.add("sensevoice-small-int8.plan", "1,234", "+0.00 (+0.00 to +0.00)")
    one.add("短い名前 b", "5", "-1.00 (-2.00 to +0.00)")
    return one


def test_words_stay_whole_and_long_names_part_after_their_punctuation() -> None:
    assert folded("one two three", 8) == ["one two", "three"]
    assert folded("see sensevoice-small-int8.plan now", 16) == [
        "see",
        "sensevoice-",
        "small-int8.plan",
        "now",
    ]
    assert folded("a" * 10, 4) == ["aaaa", "aaaa", "aa"]
    assert folded("今天天气好", 4) == ["今天", "天气", "好"]
    assert folded("", 5) == [""]


@pytest.mark.parametrize("width", [12, 25, 40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal_nor_ends_in_a_space(width: int) -> None:
    for line in table().lines(width):
        assert cell_len(line) <= width
        assert line == line.rstrip()


@pytest.mark.parametrize("width", [28, 40, 50, 60, 80])
def test_no_figure_is_lost_at_any_width(width: int) -> None:
    lines = table().lines(width)
    for figure in ("1,234", "+0.00 (+0.00 to +0.00)", "-1.00 (-2.00 to +0.00)"):
        assert sum(figure in line for line in lines) == 1


def test_the_figure_that_yields_stands_beneath_its_row_and_keeps_its_name() -> None:
    lines = table().lines(44)
    assert lines[0].endswith("drift")
    at = next(number for number, line in enumerate(lines) if "+0.00 (+0.00 to +0.00)" in line)
    assert "  extra figures: 1,234" in lines[at + 1 : at + 4]


def test_too_narrow_for_columns_is_one_figure_under_the_other() -> None:
    lines = table().lines(25)
    assert "  extra figures: 1,234" in lines
    assert lines[lines.index("  drift:") + 1].startswith("    +0.00")
    assert "─" not in "".join(lines)
