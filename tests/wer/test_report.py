from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from wer_doubles import side, utterance, utterances

from svtool.errors import SvtoolError
from svtool.wer.gate import Answer, GateOptions, GateReport, validate
from svtool.wer.report import SCHEMA, render, require_comparable, to_json

TEXTS = ["one two three", "今天 天气 好", ""]
LANGUAGES = ("en", "zh", None)
HEARD = ["one too three", "今天天气好", "[yeah]"]


def report(**fields: object) -> GateReport:
    listed = [
        utterance(text, n, language=code) for n, (text, code) in enumerate(zip(TEXTS, LANGUAGES, strict=True))
    ]
    conditions = {"batch": 8, "itn": False}
    baseline = side(
        "model.onnx", TEXTS, provider="CPUExecutionProvider", digest="ab12", conditions=conditions
    )
    return validate(baseline, side("[int8].plan", HEARD, conditions=conditions, **fields), listed)


def strict(document: dict[str, Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(document, allow_nan=False))
    return loaded


def shown(one: GateReport, width: int = 110) -> str:
    console = Console(width=width, record=True, force_terminal=True, file=io.StringIO())
    console.print(render(one))
    return console.export_text()


def test_the_published_keys() -> None:
    document = strict(to_json(report()))
    assert document["schema"] == SCHEMA == "svtool.validate-wer/1"
    published = (
        "verdict drift_points ci_low ci_high budget disagreement sqnr_db baseline candidate by_language "
        "worst executed normaliser tokeniser metric utterances words reasons warnings checks conditions"
    )
    assert set(published.split()) <= document.keys()
    assert document["executed"] is True
    assert document["exit_code"] == 3


@pytest.mark.case("W2", "W10", "Q10", "Q16")
def test_figures_name_what_they_are() -> None:
    document = to_json(report())
    assert (document["metric"], document["normaliser"], document["tokeniser"]) == (
        "MER",
        "basic/1",
        "mixed/1",
    )
    assert (document["utterances"], document["words"]) == (3, 8)
    candidate = document["candidate"]
    assert (candidate["substitutions"], candidate["deletions"], candidate["insertions"]) == (1, 0, 1)
    assert (candidate["errors"], candidate["reference_tokens"], candidate["rate_percent"]) == (2, 8, 25.0)
    assert document["by_language"]["zh"]["metric"] == "CER"
    assert document["by_language"]["unlabelled"]["drift_points"] is None


@pytest.mark.case("W7", "Q12")
def test_conditions_are_recorded() -> None:
    conditions = to_json(report())["conditions"]
    assert conditions["batching"] == {"baseline": {"batch": 8}, "candidate": {"batch": 8}}
    assert conditions["provider"] == {"baseline": "CPUExecutionProvider", "candidate": None}
    assert conditions["shared"] == {"itn": False}
    assert "cpu_flags" in conditions


@pytest.mark.case("W5")
def test_raw_and_normalised_are_both_shown() -> None:
    worst = to_json(report())["worst"]
    assert [one["id"] for one in worst] == ["u0", "u2"] or [one["id"] for one in worst] == ["u2", "u0"]
    silent = next(one for one in worst if one["id"] == "u2")
    assert silent["candidate"] == "[yeah]"
    assert silent["normalised"] == {"reference": "", "baseline": "", "candidate": "yeah"}
    assert silent["candidate_counts"]["rate_percent"] is None


def test_figures_that_are_not_numbers_are_null() -> None:
    infinite = strict(to_json(replace(report(), sqnr_db=math.inf)))
    assert infinite["sqnr_db"] is None
    assert "identical" in infinite["sqnr_note"]
    assert strict(to_json(replace(report(), sqnr_db=None)))["sqnr_note"] == "not measured"
    assert strict(to_json(replace(report(), sqnr_db=38.5)))["sqnr_note"] is None
    nothing = validate(side("a", [""]), side("b", [""]), utterances([""]))
    assert strict(to_json(nothing))["drift_points"] is None


@pytest.mark.case("W10")
def test_reports_of_different_normalisers_are_never_compared() -> None:
    document = to_json(report())
    require_comparable(document, dict(document))
    for key, value in (
        ("normaliser", "basic/2"),
        ("tokeniser", "mixed/2"),
        ("schema", "svtool.validate-wer/2"),
    ):
        with pytest.raises(SvtoolError, match=f"cannot be compared: {key}"):
            require_comparable(document, {**document, key: value})


@pytest.mark.parametrize("width", [40, 80, 140])
def test_a_person_sees_all_of_it(width: int) -> None:
    text = shown(report(executed=False, note="its ONNX twin was run"), width)
    flat = "".join(character for character in text if character.isalnum())
    for part in (
        "INCONCLUSIVE",
        "enginei",
        "only3utterances",
        "unlabelled",
        "toonarrow",
        "basic1",
        "Signals",
        "MER",
    ):
        assert part in flat or width < 80
    assert "[int8].plan" in text or width < 140
    assert "INCONCLUSIVE" in text


def test_differences_are_marked() -> None:
    from svtool.wer.report import _marked

    marked = _marked(list("abcdefg"), list("axcefgh"))
    assert marked.plain == "a x c d e f g h"
    styles = {str(span.style) for span in marked.spans}
    assert {"red", "red strike", "red underline"} <= styles


def test_all_signals_have_a_row() -> None:
    texts = ["one two three"] * 250
    said = [Answer(text, language="en", emotion="NEUTRAL", events=("Speech",), itn=False) for text in texts]
    options = GateOptions(
        max_disagreement=10, min_sqnr_db=35, columns=("snr",), disagreement_where=("snr", "5")
    )
    listed = [utterance(text, number, snr="5") for number, text in enumerate(texts)]
    alone = side("b", said).transcribe
    whole = validate(side("a", said), side("b", said, transcribe_alone=alone), listed, options)
    text = shown(replace(whole, sqnr_db=38.123), 140)
    for part in (
        "≤ 0.5",
        "≤ 10 %",
        "≥ 35 dB",
        "38.1 dB",
        "same emotion tag",
        "100.0 %",
        "0 of 32 differ",
        "By snr",
    ):
        assert part in text
