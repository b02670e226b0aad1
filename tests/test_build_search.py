"""The precision search over the embedded model, real speech and the real TensorRT-RTX."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from audio_fixtures import int16, tone, wav
from calibration_samples import Notes
from svtool import build_search, manifest
from svtool.audiofacts import audio_digest
from svtool.build import BuildOptions, SearchOptions, build
from svtool.calibration import Calibration, read_cache, save_cache
from svtool.config import GateConfig, Profile
from svtool.errors import ArtifactError, SvtoolError, UsageError
from svtool.search import CONFIRMED, SCORED
from svtool.source import read_source

UTTERANCES = 16
MIN_SQNR_DB = 46.0  # above what everything in int8 reaches, below what half of it does
PINNED = ("*.linear_out", "*.w_1")  # fewer groups, fewer measurements
SMALL = (Profile(2, 3),)


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    """The exported embedded model, in a folder of its own."""
    root = tiny_model if tiny_model.is_dir() else tiny_model.parent
    return Path(shutil.copytree(root, tmp_path / "tiny", ignore=shutil.ignore_patterns("int8*", ".svtool*")))


def options(**search: object) -> BuildOptions:
    asked = {"drift": 0.5, "limit": UTTERANCES, "min_sqnr_db": MIN_SQNR_DB} | search
    budget = SearchOptions(**asked)  # type: ignore[arg-type]
    return BuildOptions(precision="int8", profiles=SMALL, keep_fp16=PINNED, budget=budget)


def test_a_killed_search_goes_on_and_ends_in_an_engine_within_its_limits(folder: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    before = {path.name for path in folder.iterdir()}
    journal = folder / "int8.search.json"
    kill_once_ranked(folder, journal)
    left = {path.name for path in folder.iterdir()} - before
    assert "int8.plan" not in left
    measured = json.loads(journal.read_text())["entries"]
    notes = Notes()
    report = build(folder, options(), notes)
    assert any(line.startswith(f"going on with the search in {journal}") for line in notes.seen)
    assert not journal.exists()
    made = {"int8.plan", "int8.plan.json", "int8.onnx", "int8.onnx.json"}
    ranges = {
        "tiny-calibration.calibration.json"
    }  # kept too, where the committed cache is of another exporter
    assert {path.name for path in folder.iterdir()} - before - ranges == made

    found = report.search
    assert found is not None
    first, last = found.steps[0], found.steps[-1]
    assert (first.on, first.holds, first.fp16) == (SCORED, False, ())
    assert any("SQNR" in reason for reason in first.signals.reasons)
    assert measured["baseline"] is not None
    assert dict(found.ranking) == measured["rank"]
    assert (last.on, last.holds) == (CONFIRMED, True)
    assert last.signals.sqnr_db is not None
    assert last.signals.sqnr_db >= MIN_SQNR_DB
    assert last.share == pytest.approx(report.int8_share)
    assert report.int8_share < first.share
    # so few utterances prove nothing about half a point, and the report says so
    assert (report.verdict, report.exit_code) == ("inconclusive", 3)

    described = manifest.read_manifest(folder / "int8.plan")
    assert described["search"]["steps"][-1]["signals"]["sqnr_db"] == last.signals.sqnr_db
    reference = described["search"]["sqnr"]
    assert reference["db"] > reference["max_db"] - 3
    layers = described["precision_map"]
    assert len(layers["int8"]) == report.quantized_layers
    groups = {group.name: group.layers for group in read_source(folder / "model.onnx", keep=PINNED).groups}
    returned = {name for group in last.fp16 for name in groups[group]}
    assert returned
    assert returned <= set(layers["fp16"])
    assert described["pinned"]
    assert set(described["pinned"]) <= set(layers["fp16"])
    assert "ctc.ctc_lo" in layers["fp16"] + layers["fp32"]
    json.dumps(report.to_json())


def kill_once_ranked(folder: Path, journal: Path) -> None:
    command = [sys.executable, "-m", "svtool", "build-trt", str(folder), "--int8", "--profile", "2:3", "-q"]
    search = ["--drift-budget", "0.5", "--limit", str(UTTERANCES), "--min-sqnr", str(MIN_SQNR_DB)]
    search += [word for pattern in PINNED for word in ("--keep-fp16", pattern)]
    child = subprocess.Popen([*command, *search], start_new_session=True)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and child.poll() is None:
        if journal.is_file() and "rank" in json.loads(journal.read_text())["entries"]:
            break
        time.sleep(0.1)
    assert child.poll() is None, "the search ended before it could be killed"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()


def test_no_map_within_the_budget_leaves_no_engine_and_says_what_was_measured(folder: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    first = "encoder.encoders0.0.self_attn.linear_q_k_v"
    chosen = options(min_sqnr_db=120.0)
    # all but one layer pinned: the search has one group to give back
    keep = ("encoder.encoders.*", "encoder.tp_encoders.*", "*.linear_out", "*.w_1", "*.w_2")
    with pytest.raises(SvtoolError) as raised:
        build(folder, BuildOptions(**vars(chosen) | {"keep_fp16": keep}))
    message = str(raised.value)
    for words in (
        *("no int8 map of", "limits on tiny:drift", "the best of 1 map tried", "below the limit of 120 dB"),
        *("allow more with --min-sqnr", "--fp16"),
    ):
        assert words in message
    assert not list(folder.glob("int8.*plan*"))
    assert not list(folder.glob(".svtool-*"))
    assert first in json.dumps(json.loads((folder / "int8.search.json").read_text())["entries"]["rank"])


@pytest.mark.case("Q10")
def test_a_search_judged_by_its_calibration_audio_is_told(tmp_path: Path) -> None:
    listed = tmp_path / "list.jsonl"
    rows = []
    for number in range(8):
        samples = int16(tone(0.1 + number / 100)).tobytes()
        (tmp_path / f"{number}.wav").write_bytes(wav(samples))
        rows.append(json.dumps({"id": f"u{number}", "audio": f"{number}.wav", "text": "a"}))
    listed.write_text("\n".join(rows))
    heard = tuple(sorted(audio_digest(tmp_path / f"{number}.wav") for number in (2, 4)))
    cache = tmp_path / "cache.json"
    made = Calibration("", "l", "", {}, "max", None, 2, 9, {}, {"a": 1.0}, {}, audio_digests=heard)
    save_cache(cache, made)
    assert read_cache(cache) == made
    budget = build_search.Budget(GateConfig(), str(listed))
    said = build_search.overlap_warning(budget, cache, Notes())
    assert said is not None
    assert "2 of 8 utterances" in said
    assert "(u2, u4)" in said
    # those that the search takes: u0 and u4
    some = build_search.overlap_warning(replace(budget, limit=2), cache, Notes())
    assert some is not None
    assert "1 of 2 utterances" in some
    save_cache(cache, replace(made, audio_digests=()))
    assert build_search.overlap_warning(budget, cache, Notes()) is None


def test_a_search_needs_speech_with_texts(folder: Path) -> None:
    described = json.loads((folder / "model.onnx.json").read_text())
    described["source"]["name"] = "other"
    (folder / "model.onnx.json").write_text(json.dumps(described))
    with pytest.raises(UsageError, match="--drift-data LIST"):
        build(folder, options())


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"drift": float("nan")}, "the drift budget is in points and cannot be nan"),
        ({"drift": -1.0}, "cannot be -1"),
        ({"max_disagreement": float("inf")}, "the limit on disagreement cannot be inf"),
        ({"min_sqnr_db": -3.0}, "the limit on SQNR cannot be -3"),
    ],
)
def test_limits_that_mean_nothing_are_refused_before_anything_runs(
    folder: Path, limits: dict[str, float], words: str
) -> None:
    notes = Notes()
    with pytest.raises(UsageError, match=words):
        build(folder, options(**limits), notes)
    assert not any(line.startswith("search") for line in notes.seen)


def test_a_search_refuses_runtimes_that_score_int8_wrongly(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorrt_rtx")
    monkeypatch.setattr(build_search, "onnxruntime_version", lambda: "1.23.2")
    with pytest.raises(ArtifactError, match=r"onnxruntime 1\.23\.2 scores .* install 1\.31 or newer"):
        build(folder, options())
