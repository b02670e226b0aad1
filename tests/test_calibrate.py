"""`svtool calibrate` from outside: defaults, what is refused, what is left behind, and the committed cache."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import small_graph
from calibration_samples import write_wave
from svtool import calibrate, trtcache
from svtool import graph as graphs
from svtool.assets import Assets
from svtool.calibration import load_cache, read_cache
from svtool.child import Finished
from svtool.cli import app
from svtool.manifest import read_manifest

runner = CliRunner()
COMMITTED = Path(__file__).parent.parent / "calibration" / "tiny.json"
# whatever can change the exported graph
EXPORTERS = ("torch", "onnx", "onnx-ir", "onnxscript", "onnxsim")


def speech(seconds: float, seed: int, gain: float = 0.2) -> np.ndarray[Any, np.dtype[np.float64]]:
    return gain * np.random.default_rng(seed).standard_normal(int(16000 * seconds))


def write_list(folder: Path, waves: dict[str, Any], languages: tuple[str, ...] = ("en", "zh")) -> Path:
    lines = []
    for index, (name, samples) in enumerate(waves.items()):
        write_wave(folder / f"{name}.wav", samples)
        language = languages[index % len(languages)]
        lines.append(json.dumps({"audio": f"{name}.wav", "text": "x", "language": language, "id": name}))
    (folder / "mine.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder / "mine.jsonl"


@pytest.fixture
def folder(tmp_path: Path, tiny_assets: Assets) -> Path:
    """A small model with the rest of an export beside it, and a list of five recordings."""
    for path in tiny_assets.root.iterdir():
        if path.is_file() and path.suffix != ".pt":
            shutil.copy(path, tmp_path)
    small_graph.write(tmp_path / "model.onnx")
    waves = {f"a{index}": speech(1 + index / 2, index) for index in range(3)}
    write_list(tmp_path, waves | {"hush": speech(1, 8, 1e-5), "long": speech(31, 9)})
    return tmp_path


def run(folder: Path, *arguments: str, code: int = 0) -> Any:
    result = runner.invoke(app, ["calibrate", str(folder), "--threads", "1", *arguments])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def _inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in this process: starting another takes longer than the small model does."""
    monkeypatch.setattr(
        "svtool.calibrate.run_child",
        lambda _, payload, progress: Finished(calibrate.work(payload, progress), 1.0, 1),
    )


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_one_cache_and_a_report(folder: Path) -> None:
    before = files(folder)
    result = run(folder, "--data", str(folder / "mine.jsonl"), "--json")
    assert files(folder) - before == {"mine.calibration.json"}
    report = json.loads(result.stdout)
    assert report["schema"] == "svtool.calibrate/1"
    assert (report["used"], report["skipped"]) == (3, {"silent": 1, "too_long": 1})
    assert report["languages"] == {"en": 2, "zh": 1}
    assert report["audio_seconds"] == pytest.approx(4.5, abs=0.2)
    assert (report["method"], report["percentile"], report["unchanged"]) == ("percentile", 99.999, False)
    assert set(report["sqnr"]) == {"db", "max_db", "utterances", "groups"}
    assert report["fp16"]["over"] == 0
    assert len(report["fp16"]["loudest"]) == 3
    assert report["warnings"][0].startswith("used only 3 utterances")
    for words in (
        "skipped 'hush': silent (no sound above -57 dBFS over 300 Hz)",
        "skipped 'long': too long (over 30 s)",
        "warning: used only 3 utterances",
    ):
        assert result.stderr.count(words) == 1
    cache = load_cache(
        folder / "mine.calibration.json", graphs.model_digest(graphs.load_model(folder / "model.onnx"))
    )
    assert cache.digest == report["digest"]


@pytest.mark.usefixtures("_inside")
def test_the_same_again_does_nothing(folder: Path) -> None:
    options = ["--data", str(folder / "mine.jsonl"), "-o", str(folder / "cache.json"), "--method", "mse"]
    run(folder, *options)
    before = (folder / "cache.json").stat().st_mtime_ns
    result = run(folder, *options)
    assert "is there already: same model, list and settings" in result.stderr
    assert "nothing was run" in result.stdout
    assert (folder / "cache.json").stat().st_mtime_ns == before
    changed = run(folder, *options, "--smooth", "0.5")
    assert "calibrating again: " in changed.stderr
    assert "another smoothing (0.0, here 0.5)" in changed.stderr
    assert "nothing was run" not in changed.stdout
    assert read_cache(folder / "cache.json").smooth == 0.5


@pytest.mark.case("Q2")
@pytest.mark.usefixtures("_inside")
def test_whatever_differs_calibrates_again(folder: Path) -> None:
    options = ["--data", str(folder / "mine.jsonl")]
    cache = folder / "mine.calibration.json"
    run(folder, *options)
    whole = cache.read_bytes()
    cache.write_bytes(whole[: len(whole) // 2])
    assert "is truncated or damaged" in run(folder, *options).stderr
    assert cache.read_bytes() == whole
    assert "nothing was run" not in run(folder, *options, "--force").stdout
    small_graph.write(folder / "model.onnx", seed=1)
    assert "was calibrated for another model" in run(folder, *options).stderr
    assert read_cache(cache).onnx_digest == graphs.model_digest(graphs.load_model(folder / "model.onnx"))
    write_list(folder, {"other": speech(2, 4)})
    assert "another utterance list" in run(folder, *options).stderr
    assert read_cache(cache).used == 1


@pytest.mark.usefixtures("_inside")
def test_text_caches_go_out_and_come_in(folder: Path) -> None:
    data = ["--data", str(folder / "mine.jsonl")]
    run(folder, *data, "-o", str(folder / "own.json"), "--to-trt-cache", str(folder / "own.cache"))
    own = read_cache(folder / "own.json")
    assert trtcache.read(folder / "own.cache") == pytest.approx(dict(own.amax), rel=1e-6)
    text = (folder / "own.cache").read_text(encoding="utf-8") + "images: 3f800000\n"
    (folder / "foreign.cache").write_text(text, encoding="utf-8")

    foreign = ["--from-trt-cache", str(folder / "foreign.cache")]
    for more in ([], ["--force"]):
        said = run(folder, *foreign, "--to-trt-cache", foreign[1], *more, code=2).stderr
        assert "foreign.cache is read here and would be replaced" in said
    assert (folder / "foreign.cache").read_text(encoding="utf-8") == text

    alone = run(folder, "--from-trt-cache", str(folder / "foreign.cache"))
    said = " ".join(alone.stdout.replace("│", " ").split())
    assert "residual stream stays float32" in said
    assert "the scales of 1 tensor that no linear layer of this model reads were left out" in said
    imported = read_cache(folder / "foreign.calibration.json")
    assert (imported.method, imported.used, dict(imported.absmax)) == ("imported", 0, {})
    assert dict(imported.amax) == pytest.approx(dict(own.amax), rel=1e-6)

    both = run(folder, "--from-trt-cache", str(folder / "foreign.cache"), *data, "--json")
    report = json.loads(both.stdout)
    assert (report["method"], report["used"], report["left_out"]) == ("imported", 3, 1)
    assert report["sqnr"]["db"] == pytest.approx(own.sqnr["db"], abs=0.5)
    assert report["fp16"]["measured"] == len(own.absmax)


def test_a_text_cache_of_another_model_is_refused(folder: Path) -> None:
    before = files(folder)
    trtcache.write(folder.parent / "foreign.cache", {"images": 1.0, "conv1": 2.0})
    result = run(folder, "--from-trt-cache", str(folder.parent / "foreign.cache"), code=1)
    assert re.search(r"lacks (\d+) scales .* and \d+ more\) of this model", result.stderr)
    (folder.parent / "broken.cache").write_text("TRT-8501-EntropyCalibration2\nx: 3f8\n", encoding="utf-8")
    result = run(folder, "--from-trt-cache", str(folder.parent / "broken.cache"), code=1)
    assert "broken.cache, line 2: the scale of 'x'" in result.stderr
    assert files(folder) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--percentile", "99", "--method", "max"], "--percentile is for --method percentile"),
        (["--percentile", "0"], "percentile in (0, 100]"),
        (["--smooth", "2"], "smooth"),
        (["--smooth", "0.5", "--to-trt-cache", "x"], "exclude each other"),
        (["--from-trt-cache", "x", "--method", "max"], "--method and --from-trt-cache exclude each other"),
        (["--from-trt-cache", "x", "--smooth", "0.5"], "--smooth and --from-trt-cache exclude each other"),
        (["--method", "minmax"], "minmax"),
        ([], "name an utterance list with --data LIST"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(folder: Path, arguments: list[str], words: str) -> None:
    before = files(folder)
    data = ["--data", str(folder / "mine.jsonl")] if arguments and "--from-trt-cache" not in arguments else []
    assert words in run(folder, *data, *arguments, code=2).stderr
    assert files(folder) == before


@pytest.mark.parametrize("name", ["model.onnx", "mine.jsonl", "a0.wav", "config.yaml"])
def test_no_other_file_is_replaced(folder: Path, name: str) -> None:
    before = (folder / name).read_bytes()
    result = run(folder, "--data", str(folder / "mine.jsonl"), "-o", str(folder / name), code=2)
    assert "would be replaced" in result.stderr
    assert (folder / name).read_bytes() == before


def test_the_model_and_the_list_are_not_replaced_by_force(folder: Path) -> None:
    for name in ("model.onnx", "mine.jsonl"):
        before = (folder / name).read_bytes()
        run(folder, "--data", str(folder / "mine.jsonl"), "-o", str(folder / name), "--force", code=2)
        assert (folder / name).read_bytes() == before


@pytest.mark.parametrize(
    "name", ["model.onnx", "model.onnx.data", "mine.jsonl", "a0.wav", "mine.toml", "empty"]
)
def test_no_text_cache_replaces_another_file(folder: Path, name: str) -> None:
    split_weights(folder / "model.onnx")
    (folder / "mine.toml").write_text("[calibration]\n", encoding="utf-8")
    (folder / "empty").touch()
    before = {path: path.read_bytes() for path in folder.iterdir()}
    options = ["--data", str(folder / "mine.jsonl"), "--config", str(folder / "mine.toml")]
    out = ["-o", str(folder / "z.json"), "--to-trt-cache", str(folder / name)]
    said = run(folder, *options, *out, code=2).stderr
    if name == "empty":
        assert "is no TensorRT text cache and would be replaced" in said
    else:
        assert f"{name} is read here and would be replaced" in said
        assert "--force" not in said
        said = run(folder, *options, *out, "--force", code=2).stderr
        assert f"{name} is read here and would be replaced" in said
        said = run(folder, *options, "-o", str(folder / name), "--force", code=2).stderr
        assert f"{name} is read here and would be replaced" in said
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def split_weights(path: Path) -> None:
    import onnx

    onnx.save(
        onnx.load(path), path, save_as_external_data=True, location="model.onnx.data", size_threshold=1024
    )


@pytest.mark.usefixtures("_inside")
def test_a_text_cache_is_replaced_by_another(folder: Path) -> None:
    old = folder / "own.cache"
    old.write_text("TRT-100300-MinMaxCalibration\nx: 3f800000\n", encoding="utf-8")
    run(folder, "--data", str(folder / "mine.jsonl"), "--to-trt-cache", str(old))
    assert len(trtcache.read(old)) > 1
    other = folder / "notes.txt"
    other.write_text("mine", encoding="utf-8")
    run(folder, "--data", str(folder / "mine.jsonl"), "--to-trt-cache", str(other), "--force")
    assert trtcache.read(other) == trtcache.read(old)


def test_outputs_that_cannot_be_are_refused_before_any_work(folder: Path) -> None:
    before = files(folder)
    out, data = str(folder / "z.json"), ["--data", str(folder / "mine.jsonl")]
    pipe = folder.parent / "pipe"
    os.mkfifo(pipe)
    for wanted, words in (
        (["-o", out, "--to-trt-cache", str(folder)], "is a folder"),
        (["-o", out, "--to-trt-cache", out], "would both be"),
        (["-o", str(pipe)], "is no plain file"),
        (["-o", out, "--to-trt-cache", "/dev/null"], "is no plain file"),
        (["-o", str(folder / "a0.wav" / "z.json")], "is no folder to write to"),
        (["-o", out, "--to-trt-cache", str(folder / "a0.wav" / "z.cache")], "is no folder to write to"),
    ):
        for force in ([], ["--force"]):
            assert words in run(folder, *data, *wanted, *force, code=2).stderr
    assert files(folder) == before


@pytest.mark.usefixtures("_inside")
@pytest.mark.parametrize("level", [0.0, 3e-5])
def test_silence_calibrates_nothing(folder: Path, level: float) -> None:
    write_list(folder, {f"s{index}": speech(2, index, level) for index in range(3)})
    before = files(folder)
    result = run(folder, "--data", str(folder / "mine.jsonl"), code=1)
    assert "can calibrate: 3 silent (no sound above -57 dBFS over 300 Hz); name another list" in result.stderr
    assert files(folder) == before


@pytest.mark.usefixtures("_inside")
def test_faults_of_the_audio_are_told(folder: Path) -> None:
    waves = {"loud": speech(2, 1, 3.0), "faint": speech(2, 2, 2e-3), "fine": speech(2, 3)}
    waves["holes"] = np.concatenate([speech(2, 4), np.zeros(16000)])
    result = run(folder, "--data", str(write_list(folder, waves)))
    for words in (
        "clipped at full scale: 1 of 4 utterances",
        "very quiet (under -40 dBFS at their loudest): 1 of 4 utterances",
        "digital silence for more than 10% of their length: 1 of 4 utterances",
    ):
        assert words in " ".join(result.stdout.replace("│", " ").split())
    assert "warning" not in result.stderr  # once is enough


@pytest.mark.usefixtures("_inside")
def test_one_short_utterance_reads_well(folder: Path) -> None:
    result = run(folder, "--data", str(write_list(folder, {"one": speech(0.3, 1)})))
    said = " ".join(result.stdout.replace("│", " ").split())
    assert "1 used, 0.3 s of audio" in said
    assert "over 1 utterance" in said
    assert not re.search(r"\b1 (utterances|tensors|linear inputs)|(?<![\d.])0 s\b", said)


@pytest.mark.usefixtures("_inside")
def test_a_language_the_model_does_not_know_is_told(folder: Path) -> None:
    waves = {f"a{index}": speech(1, index) for index in range(2)}
    result = run(folder, "--data", str(write_list(folder, waves, ("xx", "en"))), "--json")
    words = "1 utterance in a language that the model does not know: xx (1)"
    assert any(words in one for one in json.loads(result.stdout)["warnings"])
    assert words in result.stderr


@pytest.mark.usefixtures("_inside")
def test_where_all_are_too_long_the_limit_is_named(folder: Path) -> None:
    write_list(folder, {f"long{index}": speech(4, index) for index in range(7)})
    (folder / "short.toml").write_text("[calibration]\nmax_seconds = 2.5\n", encoding="utf-8")
    options = ["--data", str(folder / "mine.jsonl"), "--config", str(folder / "short.toml")]
    for more in ([], ["--smooth", "0.5"]):
        said = run(folder, *options, *more, code=1).stderr
        assert said.count("skipped 'long") == 5
        assert "and 2 more skipped" in said
        assert (
            "can calibrate: 7 too long (over 2.5 s); take recordings of 2.5 s or less, or raise max_seconds"
            in said
        )
        assert "svtool calibrate" not in said


def started(folder: Path, temporary: Path) -> subprocess.Popen[bytes]:
    temporary.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "svtool", "calibrate", str(folder), "--data", str(folder / "mine.jsonl")]
    return subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=os.environ | {"TMPDIR": str(temporary)},
    )


def seen_within(folder: Path, pattern: str, seconds: float = 30.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if list(folder.rglob(pattern)):
            return True
        time.sleep(0.02)
    return False


def left(temporary: Path) -> list[Path]:
    """What svtool left; ONNX Runtime keeps a file of its own there."""
    return list(temporary.glob("*svtool*"))


def test_what_a_killed_run_leaves_is_cleared_by_the_next(folder: Path) -> None:
    write_list(folder, {f"a{index}": speech(25, index) for index in range(40)})
    temporary = folder.parent / "temporary"
    child = started(folder, temporary)
    try:
        assert seen_within(temporary, ".svtool-ranges-*")
    finally:
        os.kill(child.pid, signal.SIGKILL)  # the parent alone: its own child sees that it is gone
        child.communicate()
    assert len(left(temporary)) == 1
    write_list(folder, {"a": speech(1, 1)})
    again = started(folder, temporary)
    try:
        again.communicate(timeout=60)
        assert again.returncode == 0
    finally:
        again.kill()
        again.communicate()
    assert left(temporary) == []


def test_ctrl_c_ends_it_at_once_and_leaves_nothing(folder: Path) -> None:
    write_list(folder, {f"a{index}": speech(25, index) for index in range(40)})
    before = files(folder)
    temporary = folder.parent / "temporary"
    child = started(folder, temporary)
    try:
        # a folder that only the child, which is killed, could remove
        assert seen_within(temporary, ".svtool-ranges-*")
        sent = time.monotonic()
        os.killpg(child.pid, signal.SIGINT)  # what a terminal does: parent and child
        _, said = child.communicate(timeout=20)
        assert (child.returncode, said) == (130, b"interrupted\n")
        assert time.monotonic() - sent < 5.0
    finally:
        child.kill()
        child.communicate()
    assert files(folder) == before
    assert left(temporary) == []


def test_the_committed_cache_fits_the_model_of_its_libraries(tiny_model: Path) -> None:
    """Another exporter may write another graph; then `build-trt --int8` calibrates on tiny:calibration instead."""
    cache = read_cache(COMMITTED)
    assert (cache.list_name, cache.used, cache.warnings) == ("tiny:calibration", 128, ())
    assert cache.sqnr["db"] > 40
    assert set(EXPORTERS) <= set(cache.built_with)
    digest = graphs.model_digest(graphs.load_model(tiny_model))
    if exporters(cache.built_with) != exporters(read_manifest(tiny_model)["built_with"]):
        pytest.skip("other libraries export the model here than the committed cache names")
    if cache.onnx_digest != digest and not _same_vector_code():
        pytest.skip("the constants that the exporter folds differ by a last bit on other processors")
    load_cache(COMMITTED, digest)


def exporters(built_with: Mapping[str, str]) -> list[str]:
    """Versions without what follows a plus sign: torch's builds for other accelerators trace the same graph."""
    return [built_with[name].split("+")[0] for name in EXPORTERS]


def _same_vector_code() -> bool:
    import torch

    return torch.backends.cpu.get_cpu_capability() == "AVX2"
