from __future__ import annotations

import pytest
from rich.cells import cell_len

from svtool.wer.layout import Column, Table, folded


def table() -> Table:
    one = Table("Title", (Column("", text=True), Column("extra figures", drop=1), Column("drift")))
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


def test_figures_are_never_parted_and_what_has_no_room_is_named() -> None:
    wide, narrow = table().lines(80), table().lines(40)
    assert any("1,234" in line for line in wide)
    assert table()._left_out(80) == ""
    assert not any("1,234" in line for line in narrow)
    assert table()._left_out(40) == "(too narrow for: extra figures)"
    assert all(any("+0.00 (+0.00 to +0.00)" in line for line in lines) for lines in (wide, narrow))


def test_too_narrow_for_columns_is_one_figure_under_the_other_and_complete() -> None:
    lines = table().lines(25)
    assert "  extra figures: 1,234" in lines
    assert table()._left_out(25) == ""
