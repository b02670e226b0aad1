"""`svtool data check` and `svtool data convert` on lists with every fault that can be put into one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from audio_fixtures import int16, tone, wav
from svtool import data_check, data_convert
from svtool.cli import app
from svtool.errors import SvtoolError, UsageError
from svtool.utterances import decode_audio, read_utterances

runner = CliRunner()
RNG = np.random.default_rng(5)


def speech(seconds: float, level: float = 0.1) -> np.ndarray:
    """Noise as loud as speech: different at every call."""
    return (level * RNG.standard_normal(round(seconds * 16_000))).astype(np.float32)


def put(path: Path, samples: np.ndarray, rate: int = 16_000, channels: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(wav(int16(samples).tobytes(), rate=rate, channels=channels))
    return path


def listed(folder: Path, *entries: dict[str, Any]) -> Path:
    path = folder / "list.jsonl"
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in entries))
    return path


def asked(*arguments: object, code: int) -> dict[str, Any]:
    result = runner.invoke(app, ["data", *map(str, arguments), "--json", "-q"])
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def names(report: dict[str, Any], part: str) -> dict[str, list[str]]:
    for one in report[part]:
        assert one["count"] == len(one["names"])
    return {one["kind"]: one["names"] for one in report[part]}


def test_a_sound_list(tmp_path: Path) -> None:
    put(tmp_path / "a.wav", speech(0.8))
    put(tmp_path / "b.wav", speech(6.0), rate=8_000)
    path = listed(
        tmp_path,
        {"audio": "a.wav", "text": "hi", "language": "en", "duration": 0.8},
        {"audio": "b.wav", "text": "你好", "language": "zh"},
    )
    report = asked("check", path, code=0)
    assert report["schema"] == "svtool.data-check/1"
    assert (report["ok"], report["faults"], report["notes"]) == (True, [], [])
    assert (report["format"], report["utterances"], report["decoded"], report["with_text"]) == (
        "JSONL",
        2,
        2,
        2,
    )
    assert report["seconds"] == pytest.approx(12.8, abs=0.01)
    assert report["languages"] == {"en": 1, "zh": 1}
    assert report["sample_rates"] == {"16000": 1, "8000": 1}
    assert report["durations"] == {
        "under 1 s": 1, "1 to 5 s": 0, "5 to 15 s": 1, "15 to 30 s": 0, "over 30 s": 0,
    }  # fmt: skip
    page = runner.invoke(app, ["data", "check", str(path)])
    assert page.exit_code == 0
    for words in ("fit for use", "12.8 s in 2 files", "8,000 Hz (1)", "zh 1 (12.0 s)"):
        assert words in " ".join(page.stdout.split())


def test_every_fault_is_counted_and_named(tmp_path: Path) -> None:
    put(tmp_path / "a.wav", speech(1.0))
    (tmp_path / "copy.wav").write_bytes((tmp_path / "a.wav").read_bytes())
    (tmp_path / "text.wav").write_text("this is no audio")
    put(tmp_path / "empty.wav", speech(0.0))
    path = listed(
        tmp_path,
        {"audio": "a.wav", "text": "one", "id": "a"},
        {"audio": "copy.wav", "text": "two", "id": "copy"},
        {"audio": "text.wav", "text": "x", "id": "no-audio"},
        {"audio": "empty.wav", "text": "x", "id": "empty"},
        {"audio": "gone.wav", "text": "x", "id": "gone"},
        {"audio": "a.wav", "text": "one", "id": "a"},
        {"text": "x"},
    )
    report = asked("check", path, code=1)
    found = names(report, "faults")
    assert report["ok"] is False
    assert set(found) == {
        "malformed", "duplicate_id", "audio_missing", "undecodable", "too_short", "contradicting_texts",
    }  # fmt: skip
    assert found["duplicate_id"] == ["a"]
    assert found["audio_missing"] == [str(tmp_path / "gone.wav")]
    assert found["undecodable"][0].startswith("no-audio: ")
    assert found["too_short"] == ["empty"]
    assert found["contradicting_texts"] == ["a = copy = a"]
    page = runner.invoke(app, ["data", "check", str(path)])
    assert page.exit_code == 1
    assert "error: 1 duplicate id (a)" in " ".join(page.stdout.split())
    assert "unfit as it is: 6 faults of 6 kinds" in " ".join(page.stdout.split())


def test_everything_worth_knowing_is_a_note(tmp_path: Path) -> None:
    put(tmp_path / "good.wav", speech(1.0))
    (tmp_path / "again.wav").write_bytes((tmp_path / "good.wav").read_bytes())
    put(tmp_path / "silent.wav", np.zeros(16_000, np.float32))
    put(tmp_path / "clipped.wav", speech(1.0, level=2.0))
    put(tmp_path / "long.wav", speech(31.0))
    cut = put(tmp_path / "cut.wav", speech(2.0))
    cut.write_bytes(cut.read_bytes()[:-20_000])
    path = listed(
        tmp_path,
        {"audio": "good.wav", "text": "fine", "id": "good", "duration": 9.0},
        {"audio": "again.wav", "text": "Fine!", "id": "again"},
        {"audio": "silent.wav", "text": "words", "id": "silent"},
        {"audio": "clipped.wav", "text": "。", "id": "clipped", "language": "xx"},
        {"audio": "long.wav", "text": "", "id": "long"},
        {"audio": "cut.wav", "id": "cut"},
        {"audio": "good.wav", "text": "fine" * 20, "id": "hurried"},
    )
    report = asked("check", path, code=1)
    assert list(names(report, "faults")) == ["contradicting_texts"]
    found = names(report, "notes")
    assert found["silent"] == ["silent"]
    assert found["silent_with_text"] == ["silent"]
    assert found["zeros"] == ["silent"]
    assert found["clipped"] == ["clipped"]
    assert found["too_long"] == ["long"]
    assert found["empty_text"] == ["long"]
    assert found["empty_after_normalising"] == ["clipped"]
    assert found["no_text"] == ["cut"]
    assert found["damaged"][0].startswith("cut: the file ends early")
    assert found["wrong_duration"] == ["good: 9 s, in truth 1.00 s"]
    assert found["unknown_language"] == ["clipped: xx"]
    assert found["text_too_long"] == ["hurried"]


def test_the_same_audio_with_the_same_text_is_only_noted(tmp_path: Path) -> None:
    put(tmp_path / "a.wav", speech(1.0))
    path = listed(tmp_path, *({"audio": "a.wav", "text": text, "id": text} for text in ("Yes.", "yes")))
    report = asked("check", path, code=0)
    assert names(report, "notes") == {"duplicate_audio": ["Yes. = yes"]}
    listed(tmp_path, {"audio": "a.wav", "id": "1", "text": "yes"}, {"audio": "a.wav", "id": "2"})
    assert set(names(asked("check", path, code=0), "notes")) == {"duplicate_audio", "no_text"}


def test_a_list_that_cannot_be_read_or_holds_nothing(tmp_path: Path) -> None:
    gone = runner.invoke(app, ["data", "check", str(tmp_path / "gone.jsonl")])
    assert (gone.exit_code, gone.stdout) == (1, "")
    assert "does not exist" in gone.stderr
    assert asked("check", listed(tmp_path), code=1)["utterances"] == 0
    assert runner.invoke(app, ["data", "check"]).exit_code == 2


# ---- convert


@pytest.fixture
def kaldi(tmp_path: Path) -> Path:
    """Two recordings of two channels at 8 kHz, cut into three segments."""
    folder = tmp_path / "kaldi"
    for name in ("one", "two"):
        put(folder / f"{name}.wav", np.repeat(tone(2.0, 8_000, 300.0), 2), rate=8_000, channels=2)
    (folder / "wav.scp").write_text("r1 one.wav\nr2 two.wav\n")
    (folder / "segments").write_text("u/1 r1 0.5 1.25\nu2 r2 0 1\nu3 r1 1.25 -1\n")
    (folder / "text").write_text("u/1 eins\nu2 zwei\nu3 drei\n")
    (folder / "utt2lang").write_text("u2 ja\n")
    return folder


def test_segments_are_cut_into_files_of_their_own(kaldi: Path, tmp_path: Path) -> None:
    output = tmp_path / "out" / "test.jsonl"
    report = asked("convert", kaldi, "-o", output, code=0)
    assert (report["utterances"], report["cut"], report["left_out"], report["faults"]) == (3, 3, 0, [])
    found = read_utterances(output)
    assert [(one.id, one.text, one.language) for one in found] == [
        ("u/1", "eins", None),
        ("u2", "zwei", "ja"),
        ("u3", "drei", None),
    ]
    whole = decode_audio(kaldi / "one.wav").samples
    for one, (start, end) in zip(found, ((0.5, 1.25), (0.0, 1.0), (1.25, 2.0)), strict=True):
        samples = decode_audio(one.audio).samples
        expected = whole[round(start * 16_000) : round(end * 16_000)]
        assert np.abs(samples - expected).max() <= 0.5 / 32768 + 1e-7
        assert one.audio.parent.name == "test-audio"
    # the folder can be moved as a whole
    digest = found.digest
    (tmp_path / "out").rename(tmp_path / "moved")
    assert read_utterances(tmp_path / "moved" / "test.jsonl").digest == digest


def test_a_list_comes_back_as_it_was(tmp_path: Path) -> None:
    put(tmp_path / "sub" / "a b.wav", speech(0.2))
    put(tmp_path / "sub" / "语.wav", speech(0.2))
    path = listed(
        tmp_path / "sub",
        {"audio": "a b.wav", "text": "x\u2028y", "language": "en", "emotion": "HAPPY", "events": ["BGM"],
         "duration": 0.2, "subset": "5db"},
        {"audio": "语.wav", "text": "", "id": "2"},
    )  # fmt: skip
    report = data_convert.convert(path, tmp_path / "new.jsonl")
    assert (report.utterances, report.cut) == (2, 0)
    before, after = read_utterances(path), read_utterances(tmp_path / "new.jsonl")
    assert after.utterances == before.utterances
    assert "sub/语.wav" in (tmp_path / "new.jsonl").read_text()


def test_faults_are_refused_or_left_out_and_counted(kaldi: Path, tmp_path: Path) -> None:
    (kaldi / "segments").write_text("u/1 r1 0.5 1.25\nu2 r2 0 1\nu3 r1 1.25 9\nu4 r9 0 1\n")
    (kaldi / "text").write_text("u/1 eins\nu3 drei\n")
    output = tmp_path / "test.jsonl"
    with pytest.raises(SvtoolError, match=r"u4 of r9.*--leave-out"):
        data_convert.convert(kaldi, output)
    assert not output.exists()
    report = asked("convert", kaldi, "-o", output, "--leave-out", code=0)
    assert [one.id for one in read_utterances(output)] == ["u/1"]
    found = names(report, "faults")
    assert found["audio_without_text"] == ["u2"]
    assert found["bad_part"] == ["u3"]
    assert report["left_out"] == 2
    said = runner.invoke(app, ["data", "convert", str(kaldi), "-o", str(tmp_path / "b.jsonl"), "--leave-out"])
    assert "left out: 2 utterances" in said.stdout
    assert "1 utterance cannot be cut out of its recording (u3)" in said.stdout


def test_what_the_check_finds_is_what_is_left_out(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        put(tmp_path / f"{name}.wav", speech(0.5))
    (tmp_path / "text.wav").write_text("this is no audio")
    put(tmp_path / "empty.wav", speech(0.0))
    rows = [
        {"audio": f"{name}.wav", "id": name, "text": name} for name in ("a", "b", "text", "empty", "gone")
    ]
    rows += [
        {"audio": "b.wav", "id": "b2", "text": "else"},
        {"audio": "c.wav", "id": "a", "text": "second a"},
    ]
    path = listed(tmp_path, *rows)
    checked = data_check.check(path)
    report = data_convert.convert(path, tmp_path / "good.jsonl", leave_out=True)
    assert report.faults == checked.faults
    assert [one.id for one in read_utterances(tmp_path / "good.jsonl")] == ["a"]
    assert report.left_out == 6
    assert data_check.check(tmp_path / "good.jsonl").exit_code == 0


def test_nothing_is_written_over_and_nothing_is_left_behind(kaldi: Path, tmp_path: Path) -> None:
    output = tmp_path / "x.jsonl"
    output.write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        data_convert.convert(kaldi, output)
    assert output.read_text() == "mine"
    (kaldi / "segments").write_text("u1 r1 5 6\nu2 r2 5 6\n")
    (kaldi / "text").unlink()
    (kaldi / "utt2lang").unlink()
    with pytest.raises(SvtoolError, match="2 utterances cannot be cut out"):
        data_convert.convert(kaldi, tmp_path / "y.jsonl")
    with pytest.raises(SvtoolError, match="no utterance that can be used"):
        data_convert.convert(kaldi, tmp_path / "y.jsonl", leave_out=True)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["kaldi", "x.jsonl"]


def test_a_checked_list_of_segments_points_at_convert(kaldi: Path) -> None:
    report = data_check.check(kaldi)
    assert [one.kind for one in report.faults] == ["part"]
    assert "svtool data convert" in report.faults[0].words
    assert report.exit_code == 1
