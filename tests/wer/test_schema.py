from __future__ import annotations

import json
import math
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from report_samples import rich_report, silent_report
from schema_check import SCHEMA, errors

from svtool.wer.report import to_json


def reports() -> dict[str, dict[str, Any]]:
    rich = rich_report()
    made = {
        "rich": rich,
        "not measured": replace(rich, sqnr_db=None),
        "infinite": replace(rich, sqnr_db=math.inf),
        "silent": silent_report(),
    }
    return {name: json.loads(json.dumps(to_json(one), allow_nan=False)) for name, one in made.items()}


def test_every_report_is_what_the_schema_says_and_no_key_is_left_undescribed() -> None:
    for name, document in reports().items():
        assert errors(document) == [], name


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("verdict",), "maybe", "report.verdict is 'maybe'"),
        (("exit_code",), 2, "report.exit_code is 2"),
        (("budget",), None, "report.budget is a NoneType"),
        (("executed",), 1, "report.executed is a int"),
        (("probability_above_budget",), 1.5, "report.probability_above_budget is 1.5"),
        (("changes", "many"), 1, "report.changes.many is not described"),
        (("candidate", "errors"), -1, "report.candidate.errors is -1"),
        (("worst", 0, "normalised", "baseline"), None, "report.worst[0].normalised.baseline is a NoneType"),
        (("by_language", "en", "extra"), 1, "report.by_language.en.extra is not described"),
    ],
)
def test_what_the_schema_does_not_allow_is_found(path: tuple[Any, ...], value: Any, said: str) -> None:
    document = deepcopy(reports()["rich"])
    inner: Any = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    assert errors(document) == [said]


def test_a_missing_key_is_found() -> None:
    document = reports()["rich"]
    del document["candidate"]["sha256"]
    assert errors(document) == ["report.candidate lacks sha256"]


def test_every_definition_is_used_and_every_reference_defined() -> None:
    text = json.dumps(SCHEMA)
    named = {part.partition('"')[0] for part in text.split("#/$defs/")[1:]}
    assert named == set(SCHEMA["$defs"])
