"""Audio that calibrated an engine is found in a validation list by what is heard, and refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from audio_fixtures import encode, int16, packed24, tone, wav
from svtool import tiny
from svtool.audiofacts import audio_digest
from svtool.cli import app
from svtool.errors import SvtoolError
from svtool.manifest import manifest_path, read_manifest, write_manifest
from svtool.progress import Silent
from svtool.utterances import Utterance
from svtool.wer.overlap import overlap_notes

runner = CliRunner()


def engine(folder: Path, calibration: dict[str, object] | None) -> Path:
    path = folder / "int8.plan"
    path.write_bytes(b"x")
    write_manifest(path, {"kind": "engine", "calibration": calibration})
    return path


def spoken(folder: Path, count: int) -> list[Utterance]:
    for number in range(count):
        (folder / f"{number}.wav").write_bytes(wav(int16(tone(0.2 + number / 100)).tobytes()))
    return [Utterance(f"u{number}", folder / f"{number}.wav", "hi") for number in range(count)]


@pytest.mark.case("Q10")
def test_the_calibration_set_is_refused_unless_allowed(tiny_model: Path, tiny_int8: Path) -> None:
    asked = ["validate-wer", str(tiny_model), str(tiny_int8), "--data", "tiny:calibration", "--limit", "5"]
    refused = runner.invoke(app, [*asked, "--json"])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "5 of 5 utterances also calibrated" in refused.stderr
    assert "clean-0000" in refused.stderr
    assert "--allow-overlap" in refused.stderr
    allowed = runner.invoke(app, [*asked, "--json", "--allow-overlap"])
    assert allowed.exit_code in (0, 3)
    said = json.loads(allowed.stdout)["warnings"]
    assert any("int8.plan" in one and "5 of 5 utterances were in its calibration set" in one for one in said)


def test_a_plan_and_its_twin_know_their_calibration_set(tiny_int8: Path) -> None:
    audio = tiny.render("calibration").parent / "5db-0041.wav"
    twin = tiny_int8.with_suffix(".onnx")
    for artifact in (tiny_int8, twin):
        digests = read_manifest(artifact)["calibration"]["audio_digests"]
        assert len(digests) == 128
        assert digests == sorted(digests)
        assert audio_digest(audio) in digests


def test_copies_are_found_under_any_name_and_container(tmp_path: Path) -> None:
    samples = tone(0.5)
    rounded = int16(samples)
    original = tmp_path / "a.wav"
    original.write_bytes(wav(rounded.tobytes()))
    same = audio_digest(original)
    copies = {
        "renamed.wav": original.read_bytes(),
        "wide.wav": wav(packed24(rounded.astype(np.float32) / 32768), bits=24),
        "free.flac": encode("flac", "flac", rounded.astype(np.float32) / 32768),
    }
    for name, data in copies.items():
        (tmp_path / name).write_bytes(data)
        assert audio_digest(tmp_path / name) == same, name
    rounded[100] ^= 1
    original.write_bytes(wav(rounded.tobytes()))
    assert audio_digest(original) != same


def test_some_shared_audio_is_counted_and_named(tmp_path: Path) -> None:
    listed = spoken(tmp_path, 6)
    heard = [audio_digest(one.audio) for one in listed[1:5]]
    artifact = engine(tmp_path, {"list_name": "calib.jsonl", "audio_digests": heard})
    with pytest.raises(
        SvtoolError, match=r"4 of 6 utterances also calibrated .*int8\.plan \(from calib\.jsonl\)"
    ):
        overlap_notes([artifact], listed, allowed=False, progress=Silent())
    notes = overlap_notes([artifact], listed, allowed=True, progress=Silent())
    assert "4 of 6" in notes[artifact]
    apart = [listed[0], listed[5]]
    assert overlap_notes([artifact], apart, allowed=False, progress=Silent()) == {}


def test_broken_audio_is_left_to_the_run(tmp_path: Path) -> None:
    listed = spoken(tmp_path, 2)
    artifact = engine(tmp_path, {"audio_digests": ["0" * 16]})
    listed[0].audio.write_bytes(b"no audio")
    listed[1].audio.unlink()
    assert overlap_notes([artifact], listed, allowed=False, progress=Silent()) == {}


def test_what_is_not_recorded_is_said(tmp_path: Path) -> None:
    listed = spoken(tmp_path, 1)
    old = engine(tmp_path, {"list_name": "calib.jsonl"})
    assert "not recorded" in overlap_notes([old], listed, allowed=False, progress=Silent())[old]
    half = engine(tmp_path, None)
    assert overlap_notes([half], listed, allowed=False, progress=Silent()) == {}
    manifest_path(half).unlink()
    assert overlap_notes([half], listed, allowed=False, progress=Silent()) == {}
