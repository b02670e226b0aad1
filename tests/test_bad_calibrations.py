"""Every way to calibrate badly that has been seen: refused where it is made, where it is used, or by the drift gate."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from calibration_samples import write_wave
from svtool import tiny
from svtool.cli import app

UTTERANCES = 8
SECONDS = 2


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Path:
    return tiny_model


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few utterances of the embedded calibration list."""
    source = tiny.render("calibration")
    lines = source.read_text(encoding="utf-8").splitlines()[::16][:UTTERANCES]
    entries = [json.loads(line) for line in lines]
    path = tmp_path_factory.mktemp("speech") / "list.jsonl"
    rows = [entry | {"audio": str(source.parent / entry["audio"])} for entry in entries]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def good(model: Path, speech: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A sound cache and the text cache of the same scales."""
    folder = tmp_path_factory.mktemp("good")
    cache, text = folder / "good.json", folder / "good.cache"
    run("calibrate", model, "--data", speech, "-o", cache, "--to-trt-cache", text)
    return cache, text


def run(*arguments: object, code: int = 0) -> str:
    """The command's stderr; its exit code is checked."""
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.stderr


def shown(*arguments: object, code: int = 0) -> str:
    """The command's table on one line."""
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == code, done.output
    return " ".join(done.stdout.replace("│", " ").split())


def build(model: Path, cache: Path, plan: Path, code: int = 0) -> str:
    return run(
        *("build-trt", model, "--int8", "--calibration", cache, "-o", plan),
        *("--flavor", "rtx", "--profile", "2:3", "-q"),
        code=code,
    )


def test_a_good_one_is_taken(model: Path, good: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    build(model, good[0], tmp_path / "good.plan")
    assert (tmp_path / "good.plan").is_file()


@pytest.mark.parametrize("percentile", [90, 99])
def test_over_clipped(model: Path, speech: Path, tmp_path: Path, percentile: int) -> None:
    pytest.importorskip("tensorrt_rtx")
    cache = tmp_path / "clipped.json"
    table = shown("calibrate", model, "--data", speech, "-o", cache, "--percentile", percentile, code=1)
    assert "the ranges are BAD, build-trt will refuse them" in table
    assert "worse than with max ranges on the same audio" in table
    assert "use --method max, or a higher --percentile" in table
    again = shown("calibrate", model, "--data", speech, "-o", cache, "--percentile", percentile, code=1)
    assert "nothing was run" in again  # the same file is no better the second time
    said = build(model, cache, tmp_path / "clipped.plan", code=1)
    assert "they clip speech" in said
    assert not list(tmp_path.glob("clipped.plan*"))


@pytest.mark.parametrize("level", [0.0, 1e-5], ids=["digital zeros", "silence"])
def test_nothing_to_hear(model: Path, tmp_path: Path, level: float) -> None:
    rng = np.random.default_rng(1)
    lines = []
    for index in range(UTTERANCES):
        write_wave(tmp_path / f"{index}.wav", level * rng.standard_normal(16000 * SECONDS))
        lines.append(json.dumps({"audio": f"{index}.wav", "text": "", "language": "en"}))
    (tmp_path / "list.jsonl").write_text("\n".join(lines), encoding="utf-8")
    said = run("calibrate", model, "--data", tmp_path / "list.jsonl", "-o", tmp_path / "c.json", code=1)
    assert "no utterance of" in said
    assert f"{UTTERANCES} silent" in said
    assert not (tmp_path / "c.json").exists()


@pytest.mark.case("Q9")
def test_one_scale_a_hundred_times_too_large_fails_the_gate(
    model: Path, good: tuple[Path, Path], tmp_path: Path
) -> None:
    """One layer of 28 still resembles speech enough to be built; the gate sees it."""
    pytest.importorskip("tensorrt_rtx")
    folder = model.parent
    text = changed_scale(good[1], tmp_path / "loud.cache", lambda scale: 100 * scale)
    run("calibrate", model, "--from-trt-cache", text, "-o", tmp_path / "loud.json")
    plan = folder / "loud.plan"  # beside the model: the gate needs the tokenizer
    try:
        build(model, tmp_path / "loud.json", plan)
        said = CliRunner().invoke(
            app, ["validate-wer", str(model), str(plan), "--data", "tiny:drift", "--limit", "24", "--json"]
        )
        report = json.loads(said.stdout)
        assert (said.exit_code, report["verdict"]) == (1, "fail")
        assert report["sqnr_db"] < 35
    finally:
        for path in folder.glob("loud.*"):
            path.unlink()


@pytest.mark.case("Q9")
def test_the_same_with_audio_at_hand_is_refused_at_once(
    model: Path, speech: Path, good: tuple[Path, Path], tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    text = changed_scale(good[1], tmp_path / "loud.cache", lambda scale: 100 * scale)
    table = shown(
        *("calibrate", model, "--from-trt-cache", text, "--data", speech, "-o", tmp_path / "loud.json"),
        code=1,
    )
    assert "check what the other tool was given" in table
    assert "--percentile" not in table
    assert "--method" not in table
    assert "they clip speech" in build(model, tmp_path / "loud.json", tmp_path / "loud.plan", code=1)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_scale_that_is_no_scale(model: Path, good: tuple[Path, Path], tmp_path: Path, value: float) -> None:
    text = changed_scale(good[1], tmp_path / "odd.cache", lambda _: value)
    said = run("calibrate", model, "--from-trt-cache", text, "-o", tmp_path / "odd.json", code=1)
    assert f"{text}" in said
    assert "line 2" in said
    assert not (tmp_path / "odd.json").exists()


def changed_scale(source: Path, target: Path, change: Callable[[float], float]) -> Path:
    """TensorRT's text form, with its first scale changed."""
    lines = source.read_text(encoding="utf-8").splitlines()
    name, _, number = lines[1].rpartition(": ")
    (scale,) = struct.unpack(">f", bytes.fromhex(number))
    lines[1] = f"{name}: {struct.pack('>f', change(scale)).hex()}"
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return target


@pytest.mark.case("Q2")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda raw: raw[: len(raw) // 2], "is truncated or damaged"),
        (lambda raw: raw.replace('"used": 8', '"used": 900'), "was changed after svtool wrote it"),
        (lambda raw: "", "is truncated or damaged"),
    ],
    ids=["truncated", "edited", "empty"],
)
def test_a_cache_that_is_not_whole(
    model: Path, good: tuple[Path, Path], tmp_path: Path, change: Callable[[str], str], words: str
) -> None:
    pytest.importorskip("tensorrt_rtx")
    cache = tmp_path / "broken.json"
    cache.write_text(change(good[0].read_text(encoding="utf-8")), encoding="utf-8")
    said = build(model, cache, tmp_path / "broken.plan", code=1)
    assert str(cache) in said
    assert words in said
    assert "svtool calibrate" in said


@pytest.mark.case("Q2")
def test_a_cache_of_another_model(good: tuple[Path, Path], model: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    import onnx
    from onnx import numpy_helper

    graph: Any = onnx.load(model)
    weight = max(graph.graph.initializer, key=lambda one: len(one.raw_data))
    numbers = numpy_helper.to_array(weight).copy()
    numbers.flat[0] += 1.0
    weight.CopyFrom(numpy_helper.from_array(numbers, weight.name))
    onnx.save(graph, tmp_path / "model.onnx")
    said = build(tmp_path / "model.onnx", good[0], tmp_path / "int8.plan", code=1)
    assert "was calibrated for another model" in said
