"""`svtool export` as a command: options, JSON, interruption, and the longest audio the exported model takes."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from checkpoints import write_checkpoint
from svtool.cli import app
from svtool.errors import ArtifactError, SvtoolError
from svtool.export import ExportOptions, _publish, export
from svtool.frontend import SAMPLE_RATE
from svtool.manifest import read_manifest
from svtool.progress import Silent
from svtool.recognizer import Options, open_recognizer

runner = CliRunner()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("command") / "small", seed=3)


@pytest.fixture(scope="module")
def exported(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The directory written, stdout and stderr."""
    folder = tmp_path_factory.mktemp("engines") / "small"
    arguments = ["export", str(source), "-o", str(folder), "--no-simplify", "--opset", "20", "--json"]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return folder, result.stdout, result.stderr


def contents(folder: Path) -> dict[str, bytes]:
    """Of every entry; a folder counts as one, empty."""
    return {path.name: b"" if path.is_dir() else path.read_bytes() for path in folder.iterdir()}


def test_json_is_one_object_with_what_was_made(exported: tuple[Path, str, str]) -> None:
    folder, stdout, stderr = exported
    report = json.loads(stdout)
    assert report["schema"] == "svtool.export/1"
    assert report["model"] == str(folder / "model.onnx")
    assert (report["source"], report["unchanged"], report["opset"]) == ("small", False, 20)
    assert report["simplified"] is None
    assert len(report["parity"]["shapes"]) == 16
    assert set(report["seconds"]) == {"load", "export", "parity"}
    assert "warning" not in stderr.lower()


@pytest.mark.case("E12")
def test_options_are_in_the_manifest(exported: tuple[Path, str, str]) -> None:
    options = read_manifest(exported[0] / "model.onnx")["options"]
    assert (options["opset"], options["simplify"], options["device"]) == (20, False, "cpu")


def test_the_same_command_again_writes_nothing(exported: tuple[Path, str, str], source: Path) -> None:
    folder, first, _ = exported
    before = contents(folder)
    again = ["export", str(source), "-o", str(folder), "--no-simplify", "--opset", "20"]
    result = runner.invoke(app, [*again, "--json"])
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["unchanged"]
    assert report["parity"] == json.loads(first)["parity"]
    assert "up to date" in result.stderr
    assert contents(folder) == before
    assert "unchanged" in runner.invoke(app, again).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["tiny", "--opset", "17"], 2, "opset 17 cannot be written: use 18 to 23"),
        (["tiny", "--opset", "99"], 2, "opset 99 cannot be written: use 18 to 23"),
        (["tiny", "--opset", "new"], 2, "--opset"),
        (["tiny", "--device", "tpu"], 2, "tpu"),
        (["sensevoice"], 2, "tiny, iic/SenseVoiceSmall, FunAudioLLM/SenseVoiceSmall"),
        (["empty"], 1, "empty is no SenseVoice directory"),
    ],
)
@pytest.mark.case("E11")
def test_what_cannot_be_exported_is_one_line(
    in_folder: Path, arguments: list[str], code: int, said: str
) -> None:
    (in_folder / "empty").mkdir()
    result = runner.invoke(app, ["export", *arguments, "-q"])
    assert result.exit_code == code
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert [path.name for path in in_folder.iterdir()] == ["empty"]


@pytest.mark.case("E4")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_is_refused_by_name_where_there_is_none(source: Path, in_folder: Path) -> None:
    """The graph does not depend on the device that traced it; the device is never changed silently."""
    result = runner.invoke(app, ["export", str(source), "-o", "out", "--device", "cuda", "-q"])
    assert result.exit_code == 1
    assert (
        "--device cuda was asked for, but PyTorch finds no CUDA device here: use --device cpu"
        in result.stderr
    )
    assert list(in_folder.iterdir()) == []


SAY_STAGES = """
import sys
import time
from pathlib import Path
from svtool.export import ExportOptions, _publish, export
from svtool.progress import Silent
class Say(Silent):
    def stage(self, name, total=None):
        print(name, flush=True)
export(sys.argv[1], Path(sys.argv[2]), ExportOptions(force=True), Say())
"""


SAY_AND_RUN = """
import sys
import time
from svtool import cli, progress
class Say(progress.RichProgress):
    def stage(self, name, total=None):
        print(name, flush=True)
progress.RichProgress = Say
cli.main()
"""


@pytest.fixture
def occupied(exported: tuple[Path, str, str], tmp_path: Path) -> Path:
    """A directory with an export and an engine built from it."""
    folder = tmp_path / "engine"
    folder.mkdir()
    for name, content in contents(exported[0]).items():
        (folder / name).write_bytes(content)
    (folder / "int8.plan").write_bytes(b"an engine beside the model")
    return folder


class Interrupting(Silent):
    """Ctrl-C at the beginning of a stage."""

    def __init__(self, stage: str) -> None:
        self._stage = stage

    def stage(self, name: str, total: float | None = None) -> None:
        if name.startswith(self._stage):
            raise KeyboardInterrupt


@pytest.mark.parametrize("stage", ["loading", "tracing"])
def test_an_interrupted_export_leaves_the_directory_as_it_was(
    occupied: Path, source: Path, stage: str
) -> None:
    before = contents(occupied)
    with pytest.raises(KeyboardInterrupt):
        export(str(source), occupied, ExportOptions(force=True), Interrupting(stage))
    assert contents(occupied) == before
    assert [path.name for path in occupied.parent.iterdir()] == ["engine"]


def killed_while_tracing(source: Path, folder: Path) -> None:
    command = [sys.executable, "-c", SAY_STAGES, str(source), str(folder)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("tracing"):
            break
    child.kill()
    child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL


def test_a_killed_export_changes_nothing_and_the_next_one_clears_up(occupied: Path, source: Path) -> None:
    before = contents(occupied)
    killed_while_tracing(source, occupied)
    (left,) = occupied.glob(".svtool-export-*")
    assert contents(occupied) == before | {left.name: b""}
    with pytest.raises(KeyboardInterrupt):
        export(str(source), occupied, ExportOptions(force=True), Interrupting("loading"))
    assert contents(occupied) == before


def test_a_killed_first_export_leaves_only_what_the_next_one_removes(source: Path, tmp_path: Path) -> None:
    killed_while_tracing(source, tmp_path / "new")
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".svtool-export-new-")
    with pytest.raises(KeyboardInterrupt):
        export(str(source), tmp_path / "new", ExportOptions(), Interrupting("loading"))
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_the_command_with_130_and_nothing_left(source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SAY_AND_RUN, "export", str(source), "-o", str(tmp_path / "new")]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("tracing"):
            break
    time.sleep(0.5)  # into the exporter, whose own handlers must not swallow it
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "interrupted" in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("blocked", ["am.mvn", "tokens.json", "model.onnx"])
def test_files_that_cannot_all_be_put_in_place_are_taken_back(
    occupied: Path, exported: tuple[Path, str, str], blocked: str
) -> None:
    finished = occupied.parent / "finished"
    finished.mkdir()
    for name in contents(exported[0]):
        if not name.endswith(".onnx.json"):
            (finished / name).write_bytes(b"new")
    (occupied / blocked).unlink()
    (occupied / blocked / "someone's").mkdir(parents=True)
    before = {path.name: path.read_bytes() for path in occupied.iterdir() if path.is_file()}
    with pytest.raises(OSError, match=blocked):
        _publish(finished, occupied / "model.onnx")
    assert {path.name: path.read_bytes() for path in occupied.iterdir() if path.is_file()} == before
    assert (occupied / blocked / "someone's").is_dir()


def test_a_broken_small_file_is_told_before_the_model_is_loaded(source: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(source, tmp_path / "broken"))
    (broken / "configuration.json").write_text("{", encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"configuration\.json is broken at line 1, column 2"):
        export(str(broken), tmp_path / "out", ExportOptions(), Interrupting("loading"))
    assert [path.name for path in tmp_path.iterdir()] == ["broken"]


@pytest.mark.case("E6")
def test_audio_beyond_the_limit_is_refused_by_name(exported: tuple[Path, str, str]) -> None:
    recognizer = open_recognizer(exported[0], threads=1)
    limit = recognizer.backend.limits.max_frames
    assert limit == read_manifest(exported[0] / "model.onnx")["max_frames"] == 4096
    options = Options(max_segment_s=600.0, gate_silence=False, batch_size_s=600.0)
    rng = np.random.default_rng(0)
    fitting, too_long = (
        rng.uniform(-0.1, 0.1, int(frames * 0.06 * SAMPLE_RATE)).astype(np.float32)
        for frames in (limit, limit + 5)
    )
    assert len(recognizer.features(fitting)) == limit
    heard, refused = recognizer.transcribe([fitting, too_long], options)
    assert not isinstance(heard, SvtoolError)
    assert isinstance(refused, SvtoolError)
    assert "longer than the engine's 246 s" in str(refused)
    assert "\n" not in str(refused)
    recognizer.close()
