"""Rates against the references alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console
from wer_doubles import side, utterance, utterances

from svtool.errors import SvtoolError
from svtool.wer.gate import GateOptions
from svtool.wer.rates import measure, render, to_json
from svtool.wer.sides import Answer

TEXT = "one two three four five six seven eight nine ten"
WRONG = "one two three four five six seven eight nine tin"


def test_a_rate_is_errors_over_words_with_an_interval_and_no_verdict() -> None:
    report = measure(side("e.onnx", [TEXT, WRONG, TEXT, ""] * 75), utterances([TEXT] * 300))
    document = json.loads(json.dumps(to_json(report)))
    assert document["schema"] == "svtool.validate-wer.rates/1"
    assert "verdict" not in document
    assert "drift_points" not in document
    assert (document["errors"], document["reference_tokens"]) == (75 + 750, 3000)
    assert document["rate_percent"] == pytest.approx(27.5)
    assert document["rate_ci_low_percent"] < 27.5 < document["rate_ci_high_percent"]
    assert document["empty_answers"] == 75
    assert document["worst"][0]["text"] == ""
    assert (report.exit_code, report.warnings) == (0, ())


def test_groups_by_language_duration_and_columns() -> None:
    listed = [
        utterance(TEXT, 0, duration_s=2.0, snr="5"),
        utterance("今天天气好", 1, language="zh", duration_s=20.0, snr="20"),
    ]
    report = measure(side("e", [WRONG, "今天天汽好"]), listed, GateOptions(columns=("snr",)))
    found = {
        kind: {one.name: (one.metric, one.counts.errors, one.counts.reference_tokens) for one in rates}
        for kind, rates in report.by.items()
    }
    assert found["language"] == {"en": ("WER", 1, 10), "zh": ("CER", 1, 5)}
    assert found["duration"] == {"<5 s": ("WER", 1, 10), "15-30 s": ("CER", 1, 5)}
    assert found["snr"] == {"5": ("WER", 1, 10), "20": ("CER", 1, 5)}
    assert report.whole.metric == "MER"


def test_failures_are_an_error_and_few_utterances_a_warning() -> None:
    report = measure(side("e", [TEXT, Answer(error="broken")]), utterances([TEXT] * 2))
    assert report.exit_code == 1
    assert any("only 2 utterances" in warning for warning in report.warnings)
    bad = Answer(error="a.wav is broken", bad_audio=True)
    report = measure(side("e", [TEXT, bad]), utterances([TEXT] * 2))
    assert report.exit_code == 1
    (told,) = [one.message for one in report.checks if one.passed is False]
    assert "the audio of 1 of 2 utterances cannot be used by any model (a.wav is broken)" in told
    with pytest.raises(SvtoolError, match="without reference text"):
        measure(side("e", [TEXT]), utterances([None]))


@pytest.mark.case("W7")
def test_batches_are_checked_against_batch_1() -> None:
    other = side("alone", [""] * 40).transcribe
    report = measure(side("e", [TEXT] * 40, transcribe_alone=other), utterances([TEXT] * 40))
    assert report.exit_code == 1


def test_nothing_said_anywhere_is_no_rate() -> None:
    document = to_json(measure(side("e", ["", ""]), utterances(["", "。"])))
    assert (document["rate_percent"], document["rate_ci_low_percent"]) == (None, None)


def test_answers_are_kept_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    first = measure(side("e", [WRONG] * 3, digest="a" * 64), utterances([TEXT] * 3), results=path)

    def never(asked: object) -> list[tuple[int, Answer]]:
        raise AssertionError(asked)

    again = side("e", [], digest="a" * 64)
    again = type(again)("e", never, digest="a" * 64)  # type: ignore[arg-type]
    assert to_json(measure(again, utterances([TEXT] * 3), results=path)) == to_json(first)


def test_the_printed_form_shows_what_was_misheard() -> None:
    console = Console(width=80, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(render(measure(side("e.onnx", [WRONG] * 3), utterances([TEXT] * 3))))
    shown = captured.get()
    assert "e.onnx: WER 10.00 % (10.00 to 10.00) on 30 words" in shown
    assert "{ten→tin}" in shown
