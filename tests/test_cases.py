"""Every public failure in the parts built so far has a test that names it, or a reason beside it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TESTS = Path(__file__).parent
CASES = tomllib.loads((TESTS / "cases.toml").read_text(encoding="utf-8"))
ROWS = [row for rows in CASES["parts"].values() for row in rows]


def marked() -> set[str]:
    """Rows named by `pytest.mark.case(...)` anywhere under tests/."""
    found: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "case"
            ):
                found |= {one.value for one in node.args if isinstance(one, ast.Constant)}
    return found


MARKED = marked()


@pytest.mark.parametrize("row", ROWS)
def test_the_row_has_a_test_or_a_reason(row: str) -> None:
    assert (row in MARKED) != (row in CASES["elsewhere"])


def test_reasons_are_given_for_known_rows_only() -> None:
    assert set(CASES["elsewhere"]) <= set(ROWS)
