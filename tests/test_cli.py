"""The command line from outside: names, defaults, exit codes, streams."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from svtool import __version__, tiny
from svtool.cli import app

runner = CliRunner()
COMMANDS = (
    "export",
    "calibrate",
    "build-trt",
    "build-ort",
    "validate-wer",
    "transcribe",
    "serve",
    "inspect",
    "doctor",
    "verify",
    "data",
    "demo",
)


@pytest.fixture
def clips() -> list[Path]:
    folder = tiny.render("calibration").parent
    return [folder / f"clean-{number:04d}.wav" for number in range(3)]


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def test_every_command_is_there_and_has_an_example() -> None:
    whole = runner.invoke(app, ["--help"])
    assert whole.exit_code == 0
    for command in COMMANDS:
        assert command in whole.output
        help_page = runner.invoke(app, [command, "--help"])
        assert help_page.exit_code == 0
        assert "Example:" in help_page.output


def test_an_unknown_option_is_a_usage_error() -> None:
    assert runner.invoke(app, ["export", "--nonsense"]).exit_code == 2
    assert runner.invoke(app, ["nonsense"]).exit_code == 2


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_needs_no_command(option: str) -> None:
    run = subprocess.run([sys.executable, "-m", "svtool", option], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == (f"svtool {__version__}\n", "")


@pytest.mark.parametrize(
    ("typed", "advice"),
    [
        (["help"], "svtool --help"),
        (["help", "export"], "svtool export --help"),
        (["help", "data", "check"], "svtool data --help"),
        (["help", "nonsense"], "svtool --help"),
    ],
)
def test_help_as_a_command_names_the_option(typed: list[str], advice: str) -> None:
    result = runner.invoke(app, typed)
    assert result.exit_code == 2
    assert f"  {advice}" in result.stderr
    assert runner.invoke(app, advice.split()[1:]).exit_code == 0


def test_transcribe_prints_text_on_stdout_only(tiny_model: Path, clips: list[Path]) -> None:
    result = runner.invoke(app, ["transcribe", str(clips[0]), "-m", str(tiny_model)])
    assert result.exit_code == 0
    assert len(lines(result.stdout)) == 1
    assert "<|" not in result.stdout


def test_transcribe_json_has_the_promised_fields(tiny_model: Path, clips: list[Path]) -> None:
    result = runner.invoke(app, ["transcribe", *map(str, clips), "-m", str(tiny_model), "--format", "json"])
    assert result.exit_code == 0
    entries = [json.loads(line) for line in lines(result.stdout)]
    assert [entry["audio"] for entry in entries] == [str(clip) for clip in clips]
    wanted = {
        "audio",
        "text",
        "language",
        "emotion",
        "events",
        "duration_s",
        "no_speech",
        "segments",
        "words",
        "error",
    }
    for entry in entries:
        assert wanted <= set(entry)
        assert entry["schema"] == "svtool.transcribe/1"
        assert entry["text"] == " ".join(word["text"] for word in entry["words"])
        for word in entry["words"]:
            assert 0 <= word["start_s"] < word["end_s"] <= entry["duration_s"]


@pytest.mark.case("A7", "A9", "U1")
def test_one_bad_file_is_reported_and_the_rest_finish(
    tiny_model: Path, clips: list[Path], tmp_path: Path
) -> None:
    bad = tmp_path / "notes.wav"
    bad.write_text("these are no samples")
    files = [clips[0], bad, tmp_path / "missing.wav", clips[1]]
    result = runner.invoke(app, ["transcribe", *map(str, files), "-m", str(tiny_model), "-f", "json"])
    assert result.exit_code == 1
    entries = [json.loads(line) for line in lines(result.stdout)]
    assert [entry["error"] is None for entry in entries] == [True, False, False, True]
    for name in ("notes.wav", "missing.wav"):
        assert name in result.stderr


def test_several_files_in_text_are_named(tiny_model: Path, clips: list[Path]) -> None:
    result = runner.invoke(app, ["transcribe", *map(str, clips), "-m", str(tiny_model)])
    assert [line.split(": ")[0] for line in lines(result.stdout)] == [str(clip) for clip in clips]


@pytest.mark.parametrize("kind", ["srt", "vtt"])
def test_subtitles_go_to_a_file_each(tiny_model: Path, clips: list[Path], tmp_path: Path, kind: str) -> None:
    together = ["transcribe", *map(str, clips), "-m", str(tiny_model), "-f", kind]
    assert runner.invoke(app, together).exit_code == 2
    result = runner.invoke(app, [*together, "-o", str(tmp_path)])
    assert result.exit_code == 0
    for clip in clips:
        text = (tmp_path / f"{clip.stem}.{kind}").read_text(encoding="utf-8")
        assert " --> " in text
        assert text.startswith("WEBVTT") == (kind == "vtt")


def test_stdin_directories_and_globs(tiny_model: Path, clips: list[Path], tmp_path: Path) -> None:
    for clip in clips:
        shutil.copy(clip, tmp_path)
    model = ["-m", str(tiny_model)]
    piped = runner.invoke(app, ["transcribe", "-", *model], input=clips[0].read_bytes())
    alone = runner.invoke(app, ["transcribe", str(clips[0]), *model])
    assert (piped.exit_code, piped.stdout) == (0, alone.stdout)
    for argument in (str(tmp_path), str(tmp_path / "*.wav")):
        assert len(lines(runner.invoke(app, ["transcribe", argument, *model]).stdout)) == 3


def test_two_inputs_of_one_name_are_not_written_over_each_other(
    tiny_model: Path, clips: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    twin = tmp_path / "other" / clips[0].name
    shutil.copy(clips[0], twin)
    result = runner.invoke(
        app, ["transcribe", str(clips[0]), str(twin), "-m", str(tiny_model), "-o", str(tmp_path)]
    )
    assert result.exit_code == 2
    assert clips[0].stem in result.stderr


@pytest.mark.case("E10")
@pytest.mark.parametrize("command", [["transcribe", "a.wav"], ["serve"], ["validate-wer"], ["build-trt"]])
def test_a_missing_model_is_one_line_with_the_command(in_folder: Path, command: list[str]) -> None:
    result = runner.invoke(app, command)
    assert result.exit_code == 1
    assert len(lines(result.stderr)) == 1
    assert "svtool export" in result.stderr
    assert list(in_folder.iterdir()) == []


@pytest.mark.case("E10")
def test_an_empty_model_directory_is_named(in_folder: Path) -> None:
    (in_folder / "empty").mkdir()
    result = runner.invoke(app, ["transcribe", "a.wav", "-m", "empty"])
    assert result.exit_code == 1
    assert "empty" in result.stderr


@pytest.mark.case("D6")
@pytest.mark.parametrize(("value", "code"), [("zn", 0), ("ZH", 0), ("xx", 2), ("", 2)])
def test_languages(tiny_model: Path, clips: list[Path], value: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "svtool", "transcribe", str(clips[0]), "-m", str(tiny_model), "--language", value],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code
    if value == "zn":
        assert "warning: language 'zn' is read as 'zh'" in done.stderr
    if code == 2:
        assert "auto, zh, en, yue, ja, ko" in done.stderr


@pytest.mark.case("D4")
def test_no_emoji_unless_asked(tiny_model: Path, clips: list[Path]) -> None:
    plain = runner.invoke(app, ["transcribe", *map(str, clips), "-m", str(tiny_model)])
    assert all(ord(letter) < 0x2600 for letter in plain.stdout)


@pytest.mark.case("R5")
def test_a_provider_that_does_not_start_is_an_error(tiny_model: Path, clips: list[Path]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "svtool", "transcribe", str(clips[0]), "-m", str(tiny_model), "--device", "cuda"],
        capture_output=True, text=True, check=False, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 1
    assert "CUDAExecutionProvider was asked for, but ONNX Runtime started CPUExecutionProvider" in done.stderr
    assert done.stdout == ""


def test_ctrl_c_exits_130(tiny_model: Path, tmp_path: Path) -> None:
    folder = tiny.render("calibration").parent
    child = subprocess.Popen(
        [sys.executable, "-m", "svtool", "transcribe", *[str(folder)] * 1, "-m", str(tiny_model), "--threads", "1",
         "--batch-size-s", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert child.stdout is not None
    child.stdout.readline()
    child.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, said = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "Traceback" not in said
    assert time.monotonic() - began < 10


@pytest.mark.case("E9")
def test_both_backends_cut_long_audio_alike(tiny_model: Path, tmp_path: Path, clips: list[Path]) -> None:
    import wave

    import numpy as np

    from svtool.audio import decode_audio

    samples = np.concatenate([decode_audio(clip).samples for clip in clips * 3])
    long = tmp_path / "long.wav"
    with wave.open(str(long), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16000)
        out.writeframes(tiny.to_int16(samples).tobytes())
    assert len(samples) > 40 * 16000
    entries = [
        json.loads(runner.invoke(app, ["transcribe", str(long), "-m", str(model), "-f", "json"]).stdout)
        for model in (tiny_model, tiny.MODEL_DIR)
    ]
    assert entries[0]["segments"] == entries[1]["segments"]
    assert entries[0]["text"] == entries[1]["text"]


@pytest.mark.parametrize("target", ["file", "file/inside"])
def test_a_place_that_cannot_be_written_is_one_sentence(
    tiny_model: Path, clips: list[Path], tmp_path: Path, target: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    for arguments in (
        ["transcribe", str(clips[0]), "-m", str(tiny_model), "-o", str(tmp_path / target)],
        ["build-trt", str(tiny_model), "-o", str(tmp_path / target / "x.plan")],
    ):
        result = runner.invoke(app, arguments)
        assert result.exit_code == 1, arguments
        assert result.exception is None or isinstance(result.exception, SystemExit)
        assert lines(result.stderr)[-1].startswith("error: ")
        assert "file" in lines(result.stderr)[-1]
        assert "name another" in lines(result.stderr)[-1]


@pytest.mark.parametrize("place", ["/proc/x", "/proc/x/y", "/dev/null/x"])
def test_an_export_that_cannot_be_written_names_what_was_asked_for(place: str) -> None:
    result = runner.invoke(app, ["export", "tiny", "-o", place])
    assert result.exit_code in (1, 2)
    last = lines(result.stderr)[-1]
    assert place in last
    assert "name another directory with -o" in last
    assert ".svtool-" not in result.stderr


def test_a_full_disk_under_stdout_is_one_sentence(tiny_model: Path, clips: list[Path]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "svtool", "transcribe", str(clips[0]), "-m", str(tiny_model)],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: stdout: No space left on device: free")


@pytest.mark.parametrize("command", [["--version"], ["inspect", str(tiny.MODEL_DIR)], ["export", "--help"]])
def test_a_full_disk_under_other_output_is_one_sentence_too(command: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "svtool", *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "No space left on device: free" in done.stderr.splitlines()[-1]


def test_a_full_disk_under_a_file_is_not_blamed_on_stdout() -> None:
    code = (
        "from svtool import demo\n"
        "from svtool.cli import app\n"
        "demo.run = lambda: open('/dev/full', 'w').write('x' * 99999)\n"
        "app(['demo'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: a file that was being written: No space left on device")


def test_a_file_that_ends_early_is_said(tiny_model: Path, clips: list[Path], tmp_path: Path) -> None:
    cut = tmp_path / "cut.wav"
    cut.write_bytes(clips[0].read_bytes()[:60_000])
    result = runner.invoke(app, ["transcribe", str(cut), "-m", str(tiny_model), "-f", "json"])
    assert result.exit_code == 0
    assert "ends early" in result.stderr
    assert any("ends early" in one for one in json.loads(result.stdout)["warnings"])


@pytest.mark.parametrize("name", ["notes.txt", "clip.wav"])
def test_what_is_no_model_is_said_to_be_none(in_folder: Path, name: str) -> None:
    (in_folder / name).write_bytes(b"something")
    result = runner.invoke(app, ["transcribe", "a.wav", "-m", name])
    assert result.exit_code == 1
    assert f"{name} is no model" in result.stderr


def test_sigterm_leaves_no_half_written_folder(tiny_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    child = subprocess.Popen(
        [sys.executable, "-m", "svtool", "build-trt", str(tiny_model), "-o", str(tmp_path / "fp16.plan")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["-dash.wav", "-m.wav", "-help.mp3", "--long.wav", "-quiet", "-zzz"])
def test_a_name_that_begins_with_a_dash_gets_a_hint(in_folder: Path, name: str) -> None:
    (in_folder / "-quiet").write_bytes(b"")
    result = runner.invoke(app, ["transcribe", name])
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert "./-" in said
    assert "after --" in said


def test_a_mistyped_option_gets_no_hint_at_files(in_folder: Path) -> None:
    result = runner.invoke(app, ["transcribe", "a.wav", "--formt", "json"])
    assert result.exit_code == 2
    assert "./-" not in result.stderr


def test_stdin_is_called_stdin(tiny_model: Path, clips: list[Path]) -> None:
    command = ["transcribe", "-", "-m", str(tiny_model), "-f", "json"]
    good = runner.invoke(app, command, input=clips[0].read_bytes())
    assert json.loads(good.stdout)["audio"] == "stdin"
    empty = runner.invoke(app, command, input=b"")
    assert json.loads(empty.stdout)["error"] == "stdin is empty (0 bytes)"
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m", "svtool", *command],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert closed.returncode == 1
    assert lines(closed.stderr) == ["error: stdin is closed: pipe audio into it"]


def test_strange_inputs_spoil_nothing(tiny_model: Path, clips: list[Path], in_folder: Path) -> None:
    good = ["good.wav", "line\nbreak.wav", os.fsdecode(b"odd\xff.wav")]
    for clip, name in zip(clips, good, strict=True):
        shutil.copy(clip, name)
    for name in ("empty", "x.wav"):
        Path(name).mkdir()
    Path("zero.wav").write_bytes(b"")
    Path("loop.wav").symlink_to("loop.wav")
    bad = ["empty", "x.wav", "*.nope", "zero.wav", "loop.wav", "gone.wav", "/dev/null"]
    command = ["transcribe", *bad, *good, "good.wav", "./good.wav", "-m", str(tiny_model)]
    done = subprocess.run(
        [sys.executable, "-m", "svtool", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    errors = lines(done.stderr)
    assert [line.startswith("error: ") for line in errors] == [True] * len(bad)
    for name, error in zip(bad, errors, strict=True):
        assert error.count(name) == 1
    assert [line.partition(": ")[0] for line in lines(done.stdout)] == [
        "good.wav", r"'line\nbreak.wav'", r"'odd\udcff.wav'",
    ]  # fmt: skip
    result = runner.invoke(app, [*command, "-f", "json"])
    assert [json.loads(line)["audio"] for line in lines(result.stdout)] == bad + good


def test_a_reader_that_leaves_is_no_error(tiny_model: Path, clips: list[Path]) -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" | true', "sh", sys.executable, "-m", "svtool", "transcribe", *map(str, clips), "-m",
         str(tiny_model)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""


@pytest.mark.parametrize(
    "option",
    [
        ("--batch-size-s", "nan"),
        ("--batch-size-s", "inf"),
        ("--batch-size-s", "0"),
        ("--threads", "0"),
        ("--threads", "99999"),
        ("--device", "tpu"),
        ("--allow-languages", ","),
        ("--format", "xx"),
    ],
)
def test_bad_values_are_usage_errors(tiny_model: Path, clips: list[Path], option: tuple[str, str]) -> None:
    result = runner.invoke(app, ["transcribe", str(clips[0]), "-m", str(tiny_model), *option])
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert lines(result.stderr)


@pytest.fixture
def own_model(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model.parent, tmp_path / "own")) / "model.onnx"


@pytest.mark.parametrize("named", ["file", "folder"])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: "{", "is damaged (not JSON"),
        (lambda text: text.replace('"sha256": "', '"sha256": "0'), "is damaged (its sha256"),
        (
            lambda text: text.replace("svtool.manifest/1", "svtool.manifest/9"),
            "has schema 'svtool.manifest/9'",
        ),
    ],
)
def test_a_damaged_manifest_stops_and_names_the_command(
    own_model: Path, clips: list[Path], damage: Callable[[str], str], said: str, named: str
) -> None:
    sidecar = own_model.with_name("model.onnx.json")
    sidecar.write_text(damage(sidecar.read_text()))
    model = own_model if named == "file" else own_model.parent
    result = runner.invoke(app, ["transcribe", str(clips[0]), "-m", str(model)])
    assert result.exit_code == 1
    (line,) = lines(result.stderr)
    assert f"{sidecar} {said}" in line
    assert f"svtool export SOURCE -o {own_model.parent} --force" in line


def test_a_model_other_than_its_manifest_is_refused(own_model: Path, clips: list[Path]) -> None:
    with own_model.open("ab") as stream:
        stream.write(b"\x12\x00")  # an empty producer name: still a whole model
    result = runner.invoke(app, ["transcribe", str(clips[0]), "-m", str(own_model)])
    assert result.exit_code == 1
    (line,) = lines(result.stderr)
    assert "another sha256" in line
    assert f"svtool export tiny -o {own_model.parent} --force" in line


def test_a_model_without_a_manifest_runs_and_says_so(own_model: Path, clips: list[Path]) -> None:
    own_model.with_name("model.onnx.json").unlink()
    result = runner.invoke(app, ["transcribe", str(clips[0]), "-m", str(own_model.parent)])
    assert result.exit_code == 0
    (line,) = lines(result.stderr)
    assert f"{own_model} has no manifest" in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--port", "70000"], "70000"),
        (["serve", "--port", "-1"], "-1"),
        (["serve", "--port", "abc"], "'abc' is not a"),
        (["serve", "--port", ""], "'--port'"),
        (["serve", "--max-upload-mb", "0"], "0.001"),
        (["transcribe", "x.wav", "--format", "csv"], "'csv' is not one of"),
        (["transcribe", "x.wav", "--threads", "0"], "0"),
        (["transcribe", "x.wav", "--batch-size-s", "abc"], "'abc' is not a"),
        (["calibrate", "--smooth", "2"], "2"),
        (["build-trt", "--flavor", "old"], "'old' is not one of"),
        (["data", "check", "--nonsense"], "--nonsense"),
    ],
)
def test_a_wrong_value_is_told_in_words_for_people(arguments: list[str], words: str) -> None:
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    assert words in lines(result.stderr)[-1]
    for foreign in ("Value error", "Input should", "validation", "parse", "pydantic"):
        assert foreign not in result.stderr


def test_the_end_by_a_signal_is_documented() -> None:
    for command, codes in (("serve", ("130", "SIGTERM (exit 0)")), ("doctor", ("130", "143 after SIGTERM"))):
        page = " ".join(runner.invoke(app, [command, "--help"]).stdout.split())
        assert all(code in page for code in codes), page
