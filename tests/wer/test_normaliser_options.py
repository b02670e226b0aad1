"""`--normaliser` and `--korean` of validate-wer, on saved texts: no engine is needed to see what is counted."""

from __future__ import annotations

import io
import json
import wave
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from svtool.audio import SAMPLE_RATE
from svtool.cli import app
from svtool.wer.normalise import get_normaliser
from svtool.wer.score import Tokeniser

if TYPE_CHECKING:
    from click.testing import Result

Texts = tuple[str, str, str]


def scored(folder: Path, language: str, texts: Texts, *options: str) -> dict[str, Any]:
    result = gate(folder, language, texts, *options)
    assert result.stdout, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def gate(folder: Path, language: str, texts: Texts, *options: str) -> Result:
    """One utterance: reference, saved text of the baseline, saved text of the candidate."""
    (folder / "u1.wav").write_bytes(_silence())
    reference, baseline, candidate = texts
    line = {"id": "u1", "audio": "u1.wav", "text": reference, "language": language}
    (folder / "list.jsonl").write_text(json.dumps(line), encoding="utf-8")
    for name, text in (("before", baseline), ("after", candidate)):
        (folder / f"{name}.trn").write_text(f"{text} (u1)\n", encoding="utf-8")
    paths = [str(folder / name) for name in ("before.trn", "after.trn")]
    data = str(folder / "list.jsonl")
    return CliRunner().invoke(app, ["validate-wer", *paths, "--data", data, "--json", *options])


def _silence() -> bytes:
    held = io.BytesIO()
    with wave.open(held, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(bytes(2 * SAMPLE_RATE))
    return held.getvalue()


@pytest.mark.case("W5", "W10")
@pytest.mark.parametrize(
    ("name", "language", "texts", "errors"),
    [
        ("basic", "en", ("fifty percent", "fifty percent", "50%"), 2),
        ("english", "en", ("fifty percent", "fifty percent", "50%"), 0),
        ("auto", "en", ("fifty percent", "fifty percent", "50%"), 0),
        ("basic", "zh", ("百分之五", "百分之五", "5%"), 4),
        ("chinese", "zh", ("百分之五", "百分之五", "5%"), 0),
        ("auto", "yue", ("百分之五個", "百分之五個", "5%个"), 0),
    ],
)
def test_the_normaliser_asked_for_is_used_and_named(
    tmp_path: Path, name: str, language: str, texts: Texts, errors: int
) -> None:
    report = scored(tmp_path, language, texts, "--normaliser", name)
    assert report["normaliser"] == get_normaliser(name).id
    assert report["baseline"]["errors"] == 0
    assert report["candidate"]["errors"] == errors


@pytest.mark.case("W2")
@pytest.mark.parametrize(
    ("korean", "metric", "errors", "tokens"), [("words", "WER", 2, 3), ("characters", "CER", 0, 4)]
)
def test_korean_is_counted_as_asked(
    tmp_path: Path, korean: str, metric: str, errors: int, tokens: int
) -> None:
    texts = ("할 수 있다", "할 수 있다", "할수 있다")
    report = scored(tmp_path, "ko", texts, "--korean", korean)
    assert report["tokeniser"] == Tokeniser(korean).id  # type: ignore[arg-type]
    assert report["metric"] == metric
    assert report["words"] == tokens
    assert report["drift_points"] == pytest.approx(100 * errors / tokens)


@pytest.mark.parametrize(
    ("option", "known"), [("--korean", "characters"), ("--normaliser", "chinese-simplified")]
)
def test_another_way_of_counting_is_a_usage_error(tmp_path: Path, option: str, known: str) -> None:
    result = gate(tmp_path, "en", ("a", "a", "a"), option, "syllables")
    assert result.exit_code == 2
    assert known in result.stderr
