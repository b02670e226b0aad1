from __future__ import annotations

import io
import json
import math
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from wer_doubles import side, utterance, utterances

from svtool.errors import SvtoolError
from svtool.wer.gate import Answer, GateOptions, GateReport, validate
from svtool.wer.report import SCHEMA, require_comparable, to_json
from svtool.wer.terminal import _marked, render

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


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_person_sees_all_of_it_at_any_width(width: int) -> None:
    text = shown(report(executed=False, note="its ONNX twin was run"), width)
    flat = " ".join(text.replace("│", " ").split())
    for part in (
        "INCONCLUSIVE",
        "engine itself not executed",
        "only 3 utterances",
        "too narrow to trust",
        "[int8].plan",
        "MER",
        "drift",
        "unlabelled",
        "basic/1",
    ):
        assert part in flat
    assert max(map(cell_len, text.splitlines())) <= width


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_word_is_broken_where_a_line_would_hold_it(width: int) -> None:
    wide = set(re.findall(r"[a-z]{4,}", shown(report(), 1000)))
    narrow = set(re.findall(r"[a-z]{4,}", shown(report(), width)))
    assert narrow <= wide


@pytest.mark.parametrize("width", [40, 50, 60, 70, 80, 100])
def test_every_figure_is_told_at_any_width(width: int) -> None:
    figures = re.compile(r"[-+]?\d[\d,.]*")
    wide, narrow = (Counter(figures.findall(shown(report(), columns))) for columns in (300, width))
    assert not wide - narrow  # names that stand in every row may hold figures (95 %)
    flat = " ".join(shown(report(), 40).split())
    for name in ("errors: ", "wrong / missing / extra: ", "ran on: ", "utterances: ", "before → after: "):
        assert name in flat


def test_conditions_are_said_once_and_in_words() -> None:
    said = {
        "segmentation": "at most 30 s",
        "itn": False,
        "dither": 0,
        "batch_size_n": 32,
        "batch_size_s": 60.0,
        "int8_arithmetic": "exact on every CPU (session.x64quantprecision=1)",
        "odd_one": None,
    }
    sides = (
        side("a", ["hi"], conditions={**said, "precision": "fp32"}),
        side("b", ["hi"], conditions={**said, "precision": "int8"}),
    )
    whole = validate(*sides, utterances(["hi"]))
    text = shown(whole, 200)
    rows = {
        tuple(re.split(r"\s{2,}", line.strip(), maxsplit=1))
        for line in text[text.index("How it was measured") :].splitlines()[1:]
    }
    assert {
        ("pieces of long audio", "at most 30 s"),
        ("digits, punctuation (ITN)", "off"),
        ("noise added (dither)", "none"),
        ("utterances in a batch", "at most 32"),
        ("audio in a batch", "at most 60 s, padding included"),
        ("precision", "baseline fp32, candidate int8"),
        ("int8 arithmetic", "exact on every CPU"),
        ("odd one", "not known"),
    } <= rows
    assert not re.search(r"\w_(size|arithmetic|n|s)\b|session\.", text)
    recorded = to_json(whole)["conditions"]
    assert recorded["batching"]["candidate"]["int8_arithmetic"].endswith("(session.x64quantprecision=1)")


def test_differences_are_marked_with_and_without_colours() -> None:
    marked = _marked(list("abcdefg"), list("axcefgh"))
    assert marked.plain == "a {b→x} c {-d} e f g {+h}"
    assert [marked.plain[span.start : span.end] for span in marked.spans if span.style == "red"] == [
        "{b→x}",
        "{-d}",
        "{+h}",
    ]


def test_the_candidates_own_text_is_shown_where_the_normaliser_changed_it() -> None:
    assert "as given   [yeah]" in shown(report())
    plain = validate(side("a", ["one"]), side("b", ["two"]), utterances(["one"]))
    assert "as given   " not in shown(plain)


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
        "100.0 % of utterances",
        "0 of 32, 0.00 % of words",
        "0.00 %, in 0 of 250 texts",
        "the same, only where snr is 5",
        "By snr",
    ):
        assert part in text
    (limited,) = (line for line in text.splitlines() if "≤ 10 %" in line)
    assert "snr is 5" in limited
