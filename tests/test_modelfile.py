"""Model files that are no good, by every command that opens one: one sentence, and commands that can be pasted."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner

import small_graph
from svtool import modelfile
from svtool.backends.onnxrt import open_session
from svtool.cli import app
from svtool.errors import ArtifactError
from svtool.graph import load_model

runner = CliRunner()
SOURCE = Path(__file__).parent.parent / "src" / "svtool"
RAW = ("Traceback", "onnxruntime_src", "[ONNXRuntimeError]", "google.protobuf", "DecodeError")


def ir_99(whole: bytes) -> bytes:
    model = onnx.load_from_string(whole)
    model.ir_version = 99
    return model.SerializeToString()


def opset_99(whole: bytes) -> bytes:
    model = onnx.load_from_string(whole)
    model.opset_import[0].version = 99
    return model.SerializeToString()


BROKEN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda _: b"", r"is empty \(0 bytes\): cut off or never written; "),
    "half": (
        lambda whole: whole[: len(whole) // 2],
        r"is cut off: [\d,]+ bytes of at least [\d,]+ are there; ",
    ),
    "one byte short": (lambda whole: whole[:-1], r"is cut off: "),
    "text": (lambda _: b"this is no model\n", r"is a text file \('this is no model'\): "),
    "page": (lambda _: b"<html>404</html>", r"is an HTML page, as a failed download leaves: "),
    "zeros": (lambda _: bytes(9000), r"holds nothing but zeros"),
    "zip": (lambda _: b"PK\x03\x04" + bytes(range(256)) * 9, r"is not a readable ONNX model"),
    "head alone": (lambda _: b"\x08\x0a", r"is not a readable ONNX model \(it holds no graph"),
    "inner damage": (
        lambda whole: whole[:200] + b"\xff" * 400 + whole[600:],
        r"is not a readable ONNX model",
    ),
    "ir": (ir_99, r"has IR version 99, and ONNX Runtime [\d.]+ here reads up to \d+: "),
    "opset": (opset_99, r"has opset 99 of ai\.onnx, and ONNX Runtime [\d.]+ here reads up to \d+: "),
}
COMMANDS = {
    "transcribe": ["transcribe", "a.wav", "-m", "PATH"],
    "serve": ["serve", "PATH", "--no-ui", "--port", "0"],
    "validate-wer": ["validate-wer", "PATH", "PATH", "--data", "tiny:drift"],
    "build-trt": ["build-trt", "PATH"],
    "build-ort": ["build-ort", "PATH", "--int8", "--data", "tiny:calibration"],
    "calibrate": ["calibrate", "PATH", "--data", "tiny:calibration"],
}


@pytest.fixture
def model_folder(tiny_model: Path, in_folder: Path) -> Path:
    """An exported folder of one's own, to break files in."""
    engines = shutil.ignore_patterns("*.plan*", "int8*", "fp16*")  # that other tests may have built there
    shutil.copytree(tiny_model.parent, in_folder / "m", ignore=engines)
    return in_folder / "m"


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_tells_a_broken_model_in_one_sentence(
    model_folder: Path, fault: str, command: str
) -> None:
    whole = (model_folder / "model.onnx").read_bytes()
    make, said = BROKEN[fault]
    Path("m/broken.onnx").write_bytes(make(whole))
    arguments = ["m/broken.onnx" if one == "PATH" else one for one in COMMANDS[command]]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    last = result.stderr.splitlines()[-1]
    assert re.match(rf"error: m/broken\.onnx {said}", last), last
    assert "svtool export SOURCE  (SOURCE is" in last
    assert not [one for one in RAW if one in result.stderr]
    assert sum("error: " in one for one in result.stderr.splitlines()) == 1


@pytest.mark.parametrize("fault", BROKEN)
def test_both_readers_go_through_the_check(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "broken.onnx"
    make, said = BROKEN[fault]
    path.write_bytes(make(small_graph.make().SerializeToString()))
    for reader in (load_model, open_session):
        with pytest.raises(ArtifactError, match=rf"broken\.onnx {said}"):
            reader(path)


def test_no_session_is_opened_on_a_file_that_was_not_checked() -> None:
    """Sessions over a path are `open_session`'s; the others are over graphs that svtool just wrote."""
    own = {"backends/onnxrt.py", "modelfile.py", "probes.py", "ranges.py"}
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if "InferenceSession(" in path.read_text(encoding="utf-8")
    }
    assert found == own


def test_a_whole_model_passes_and_its_versions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = small_graph.make()
    onnx.save(model, path)
    modelfile.check(path)
    header = modelfile.read_header(path)
    assert header.ir_version == model.ir_version
    assert header.opsets == {one.domain: one.version for one in model.opset_import}


def test_the_limits_are_those_of_the_runtime(tmp_path: Path) -> None:
    """The newest versions that it names are really read, and the next ones are not."""
    model = small_graph.make()
    for step, fits in ((0, True), (1, False)):
        for kind in ("ir", "opset"):
            changed = onnx.ModelProto()
            changed.CopyFrom(model)
            if kind == "ir":
                changed.ir_version = (modelfile._most_ir() or 0) + step
            else:
                changed.opset_import[0].version = (modelfile._most_opset("") or 0) + step
            path = tmp_path / f"{kind}{step}.onnx"
            onnx.save(changed, path)
            assert (modelfile.version_problem(modelfile.read_header(path)) is None) == fits
            if kind == "ir" and fits:
                open_session(path)


def test_a_domain_of_somebody_else_is_no_fault(tmp_path: Path) -> None:
    model = small_graph.make()
    model.opset_import.append(onnx.helper.make_opsetid("my.ops", 700))
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    modelfile.check(path)


def test_inspect_still_shows_a_model_that_is_too_new(model_folder: Path) -> None:
    path = model_folder / "new.onnx"
    path.write_bytes(ir_99((model_folder / "model.onnx").read_bytes()))
    result = runner.invoke(app, ["inspect", str(path)])
    assert "IR version 99" in result.stdout
    assert "here reads up to" in " ".join(result.stdout.split())


def test_a_broken_model_with_a_manifest_names_the_very_command(model_folder: Path) -> None:
    path = model_folder / "model.onnx"
    path.write_bytes(path.read_bytes()[:1000])
    result = runner.invoke(app, ["build-trt", "m"])
    assert result.stderr.strip().endswith("make it again with  svtool export tiny -o m --force")


# --- what is missing, as somebody typed it -------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "advice"),
    [
        ("iic/SenseVoiceSmall", "svtool export iic/SenseVoiceSmall"),
        ("FunAudioLLM/SenseVoiceSmall", "svtool export FunAudioLLM/SenseVoiceSmall"),
        ("funaudiollm/sensevoicesmall", "svtool export FunAudioLLM/SenseVoiceSmall"),
        ("SenseVoiceSmall", "svtool export iic/SenseVoiceSmall"),
        ("tiny", "svtool export tiny"),
        ("engines/tiny", "svtool export tiny -o engines/tiny"),
        ("engines/tiny/model.onnx", "svtool export tiny -o engines/tiny"),
        ("engines/nope", "svtool export SOURCE -o engines/nope"),
        ("engines/nope/model.onnx", "svtool export SOURCE -o engines/nope"),
        (
            "engines/nope/int8.plan",
            "svtool export SOURCE -o engines/nope  and  svtool build-trt engines/nope/model.onnx --int8",
        ),
    ],
)
@pytest.mark.parametrize("command", ["transcribe", "serve", "build-trt", "calibrate", "inspect"])
def test_what_is_missing_is_made_with_the_name_that_was_typed(
    in_folder: Path, command: str, typed: str, advice: str
) -> None:
    arguments = {"transcribe": ["a.wav", "-m", typed], "calibrate": [typed, "--data", "tiny:calibration"]}
    result = runner.invoke(app, [command, *arguments.get(command, [typed])])
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()  # no "loading ..." before a refusal
    assert re.match(rf"error: {typed}\S* does not exist: make it with  {re.escape(advice)}(  |$)", line), line
    assert list(in_folder.iterdir()) == []


def test_a_missing_engine_beside_its_model_is_built_from_it(model_folder: Path) -> None:
    result = runner.invoke(app, ["transcribe", "a.wav", "-m", "m/int8.plan"])
    assert result.stderr.strip().endswith("make it with  svtool build-trt m/model.onnx --int8")


@pytest.mark.parametrize("where", [".", "m", "deep/er"])
def test_a_model_without_its_companions_says_where_they_go(
    tiny_model: Path, in_folder: Path, where: str
) -> None:
    Path(where).mkdir(parents=True, exist_ok=True)
    lone = Path(where) / "lone.onnx"
    shutil.copy(tiny_model, lone)
    result = runner.invoke(app, ["transcribe", "a.wav", "-m", str(lone)])
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"error: {lone} needs config.yaml, am.mvn, ")
    assert last.endswith(f"copy them to {(in_folder / where).resolve()}")
    for name in ("config.yaml", "am.mvn"):
        shutil.copy(tiny_model.parent / name, where)
    result = runner.invoke(app, ["transcribe", "a.wav", "-m", str(lone)])
    assert "copy it to" in result.stderr


def test_a_bare_folder_is_never_called_a_dot(in_folder: Path) -> None:
    result = runner.invoke(app, ["transcribe", "a.wav", "-m", "."])
    assert result.stderr.startswith(f"error: {in_folder.resolve()} is no SenseVoice directory")


@pytest.mark.parametrize("command", [["transcribe", "a.wav", "-m"], ["serve"]])
def test_a_plan_without_a_manifest_is_told_no_precision(in_folder: Path, command: list[str]) -> None:
    Path("trunc.plan").write_bytes(b"plan")
    result = runner.invoke(app, [*command, "trunc.plan"])
    (line,) = result.stderr.splitlines()
    assert line.endswith(
        "make both with  svtool build-trt MODEL -o trunc.plan  (add --int8 or --fp16, as it was)"
    )


def test_every_export_that_is_advised_names_its_source() -> None:
    """Advice stands between double spaces; `svtool export` alone would export the embedded model."""
    named = re.compile(r"  svtool export (SOURCE|tiny|iic/|FunAudioLLM/|\./|\{)")
    bad = [
        f"{path.name}: {line.strip()}"
        for path in SOURCE.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "  svtool export" in line and not named.search(line)
    ]
    assert not bad
