"""Reports with everything in them, and with texts that try to be markup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from wer_doubles import side, utterance, utterances

from svtool.sqnr import Sqnr
from svtool.utterances import Utterance
from svtool.wer.gate import Answer, GateOptions, GateReport, validate

HOSTILE = "<script>alert(1)</script> @everyone | `code` #1 [link](http://example.com/x) &amp; \x07\u202e ]]>"
NOTE = "the plan cannot run here: its ONNX twin was run; engine itself not executed"


def rich_report(*, wrong: int = 30, audio: Path | None = None, **options: object) -> GateReport:
    """300 utterances in three languages; the candidate spoils `wrong` of them and fails on one."""
    listed, before, after = [], [], []
    for number in range(300):
        language, text = (("en", "one two three four"), ("zh", "今天天气很好"), ("ko", "오늘 날씨가 좋아요"))[
            number % 3
        ]
        spoken = HOSTILE if number == 0 else text
        given = f"{spoken} {HOSTILE}" if number < wrong else spoken
        failed = Answer(error="ran out of <b>memory</b>") if number == 299 else None
        listed.append(
            utterance(spoken, number, language=language, duration_s=(2.0, 9.0, 20.0)[number % 7 % 3], snr="5")
        )
        before.append(answer(spoken))
        after.append(failed or answer(given))
    if audio is not None:
        listed = [one if at else with_audio(one, audio) for at, one in enumerate(listed)]
    conditions = {"itn": False, "batch_size_n": 8}
    sides = (
        side("model.onnx", before, digest="ab12", artifact=Path("m/model.onnx"), conditions=conditions),
        side(
            "<int8>.plan",
            after,
            digest="cd34",
            executed=False,
            note=NOTE,
            conditions=conditions,
            transcribe_alone=alone(after),
        ),
    )
    chosen: dict[str, object] = {
        "columns": ("snr",),
        "data": {"list": "<list>.jsonl"},
        "min_sqnr_db": 35.0,
        **options,
    }
    return validate(*sides, listed, GateOptions(**chosen), measure_sqnr=lambda _: noisy())  # type: ignore[arg-type]


def answer(text: str) -> Answer:
    return Answer(text, language="en", emotion="HAPPY", events=("Speech",), itn=False)


def alone(answers: Sequence[Answer]) -> Callable[[Sequence[Utterance]], list[tuple[int, Answer]]]:
    return lambda asked: [(at, answers[int(one.id[1:])]) for at, one in enumerate(asked)]


def with_audio(one: Utterance, audio: Path) -> Utterance:
    from dataclasses import replace

    return replace(one, audio=audio)


def noisy() -> Sqnr:
    sqnr = Sqnr()
    exact = np.ones((50, 4), np.float32)
    sqnr.add(exact, exact * np.float32(1.01))
    return sqnr


def silent_report() -> GateReport:
    """No reference holds a word: nothing can be divided by."""
    return validate(side("a", ["", ""]), side("b", ["", "yeah"]), utterances(["", "。"]))


def sound_report() -> GateReport:
    texts = ["one two three four five"] * 250
    return validate(side("a", texts, digest="aa"), side("b", texts, digest="bb"), utterances(texts))
