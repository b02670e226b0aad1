from __future__ import annotations

import pytest
from wer_doubles import side, utterance

from svtool.errors import UsageError
from svtool.utterances import Utterance
from svtool.wer.columns import MOST_LABELS, labels_of, require_columns
from svtool.wer.gate import GateOptions, validate


def having(values: list[str | None]) -> list[Utterance]:
    return [
        utterance("one", number, **({} if value is None else {"snr": value}))
        for number, value in enumerate(values)
    ]


def test_a_few_numbers_stay_as_they_are_in_their_order() -> None:
    labels, order = labels_of(having(["10", "-5", "0", "10", None]), "snr")
    assert labels == ["10", "-5", "0", "10", "unlabelled"]
    assert order == ("-5", "0", "10")


def test_many_numbers_are_put_in_quarters() -> None:
    listed = having([*(str(number / 10) for number in range(100)), None])
    labels, order = labels_of(listed, "snr")
    assert order == ("0 to 2.4", "2.5 to 4.9", "5 to 7.4", "7.5 to 9.9")
    assert [labels.count(name) for name in order] == [25, 25, 25, 25]
    assert labels[-1] == "unlabelled"


def test_one_number_that_most_have_does_not_break_the_quarters() -> None:
    labels, order = labels_of(having(["0"] * 90 + [str(number) for number in range(1, 21)]), "snr")
    assert order[0] == "0 to 0"
    assert labels.count(order[0]) == 90
    assert sum(labels.count(name) for name in order) == 110


def test_too_many_names_are_put_together() -> None:
    names = [f"speaker {number}" for number in range(100)]
    labels, _ = labels_of(having([*names, *names[:30]]), "snr")
    assert len(set(labels)) == MOST_LABELS
    assert labels.count("(61 others)") == 61
    assert labels.count("speaker 3") == 2


def test_a_column_that_is_not_there_is_a_usage_error() -> None:
    require_columns(having(["5", None]), ["snr", "language"])
    with pytest.raises(UsageError, match=r"no column 'emotion' .*it has language, snr"):
        require_columns(having(["5", None]), ["emotion"])


def test_the_report_has_them_in_their_order() -> None:
    listed = having(["10", "5", "10", "20"])
    texts = ["one"] * 4
    report = validate(side("a", texts), side("b", texts), listed, GateOptions(columns=("snr",)))
    assert [(group.name, group.utterances) for group in report.by_column["snr"]] == [
        ("5", 1),
        ("10", 2),
        ("20", 1),
    ]
