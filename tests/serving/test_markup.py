"""The page's own HTML: everything from outside is escaped, and every state has its words."""

from __future__ import annotations

import pytest

from svtool.errors import AudioError
from svtool.recognizer import SILENCE, TOO_SHORT, Transcript
from svtool.serving import markup
from svtool.serving.service import Engine, Recognition
from svtool.timing import Word

EVIL = "<img src=x onerror=alert(1)>"


def heard(**changes: object) -> Recognition:
    transcript = Transcript("one two", "en", "HAPPY", ("Speech", "Laughter"), 2.0, no_speech=False)
    fields = vars(transcript) | changes
    return Recognition(Transcript(**fields), took_s=0.5, warnings=())


def test_a_result_shows_text_marks_segments_and_figures() -> None:
    words = (Word("one", 0.25, 0.5), Word("two", 61.5, 62.48, spaced=True))
    html = markup.result(heard(words=words))
    for text in ("one two", "😊", "😀", "English", "Happy", "Laughter", "0:00.25", "1:02.48", "4× real time"):
        assert text in html
    assert "&lt;|" not in html
    assert "sv-long" not in html
    assert "sv-long" in markup.result(heard(text="one two " * 50))


def test_emoji_stand_apart_in_a_font_that_has_them() -> None:
    html = markup.result(heard())
    assert '<span class="sv-emoji">😀</span>one two<span class="sv-emoji">😊</span>' in html


@pytest.mark.parametrize("field", ["text", "language", "emotion"])
def test_everything_is_escaped(field: str) -> None:
    assert EVIL not in markup.result(heard(**{field: EVIL}))


def test_words_events_warnings_errors_and_names_are_escaped() -> None:
    done = heard(words=(Word(EVIL, 0.0, 1.0),), events=(EVIL,))
    assert EVIL not in markup.result(Recognition(done.transcript, 0.1, (EVIL,)))
    assert EVIL not in markup.failure(AudioError(EVIL, reason="broken"))
    assert EVIL not in markup.head(Engine(EVIL, EVIL, EVIL, EVIL))


@pytest.mark.parametrize(
    ("reason", "words"), [(TOO_SHORT, "too short"), (SILENCE, "too quiet"), (None, "heard no speech")]
)
def test_silence_is_said_in_words(reason: str | None, words: str) -> None:
    html = markup.result(
        heard(text="", language=None, emotion=None, events=(), no_speech=True, reason=reason)
    )
    assert words in html
    assert "sv-marks" not in html


def test_unknown_tags_are_shown_by_name() -> None:
    html = markup.result(heard(emotion="CALM", events=("Siren",), language="de"))
    for name in ("CALM", "Siren", "de"):
        assert name in html


@pytest.mark.parametrize(
    ("runtime", "provider", "shown"),
    [
        ("onnxruntime", "CPUExecutionProvider", "ONNX Runtime, CPU"),
        ("onnxruntime", "CUDAExecutionProvider", "ONNX Runtime, CUDA"),
        ("torch", "cpu", "PyTorch, CPU"),
        ("tensorrt", "TensorRT 10.13", "TensorRT 10.13"),
        ("other", "", "other"),
    ],
)
def test_where_it_runs(runtime: str, provider: str, shown: str) -> None:
    assert markup.runs_on(Engine("x", "fp32", runtime, provider)) == shown


def test_only_the_demonstration_model_has_the_notice() -> None:
    assert "not a recogniser for your voice" in markup.tiny_notice(Engine("x", "y", "z", "w", is_tiny=True))
    assert markup.tiny_notice(Engine("x", "y", "z", "w")) == ""
