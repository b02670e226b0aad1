"""Settings of ONNX Runtime reach the session: the real one on a CPU, a recorded call for CUDA."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from typer.testing import CliRunner

import small_graph
from svtool import tiny
from svtool.backends.onnxrt import CPU, CUDA, OnnxRuntimeBackend, cuda_options, open_session
from svtool.build_ort import OrtOptions, build_ort
from svtool.calibration import calibrate, save_cache
from svtool.cli import app
from svtool.config import Config, OrtConfig, OrtCpuConfig, OrtCudaConfig, load_config
from svtool.errors import ArtifactError, SvtoolError

runner = CliRunner()
SWITCH = "session.x64quantprecision"
FILE = """
[onnxruntime.cpu]
threads = 1
arena = false
spinning = true
[onnxruntime.cuda]
gpu_mem_limit_mb = 2048
arena_extend_strategy = "kSameAsRequested"
cudnn_conv_algo_search = "DEFAULT"
do_copy_in_default_stream = false
"""


@dataclass
class Recorded:
    """What sessions were made with; they are real ones."""

    options: list[Any] = field(default_factory=list)
    providers: list[Any] = field(default_factory=list)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    seen, real = Recorded(), onnxruntime.InferenceSession

    def session(model: Any, options: Any, providers: Any) -> Any:
        seen.options.append(options)
        seen.providers.append(providers)
        # without the libraries of CUDA it starts on the CPU, as it would by itself
        return real(model, options, providers=[CPU])

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    return seen


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return small_graph.write(tmp_path / "model.onnx")


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def test_cpu_settings_reach_the_session(model: Path) -> None:
    chosen = OrtConfig(cpu=OrtCpuConfig(threads=1, arena=False, inter_op_threads=2, spinning=True))
    options = open_session(model, settings=chosen).get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 2)
    assert options.enable_cpu_mem_arena is False
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "1"
    plain = open_session(model).get_session_options()
    assert plain.enable_cpu_mem_arena is True
    assert plain.execution_mode == onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    assert plain.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_the_command_line_goes_before_the_file(model: Path) -> None:
    chosen = OrtConfig(cpu=OrtCpuConfig(threads=2))
    assert open_session(model, threads=1, settings=chosen).get_session_options().intra_op_num_threads == 1
    assert open_session(model, settings=chosen).get_session_options().intra_op_num_threads == 2


@pytest.mark.case("R8")
def test_no_exhaustive_search_for_every_length_by_default() -> None:
    assert cuda_options(OrtCudaConfig()) == {
        "arena_extend_strategy": "kNextPowerOfTwo",
        "cudnn_conv_algo_search": "HEURISTIC",
        "do_copy_in_default_stream": "1",
    }


@pytest.mark.case("R5", "R8")
def test_cuda_settings_reach_the_session_and_the_cpu_is_no_substitute(
    model: Path, settings: Path, recorded: Recorded
) -> None:
    with pytest.raises(
        SvtoolError, match="CUDAExecutionProvider was asked for, but ONNX Runtime started CPU"
    ):
        OnnxRuntimeBackend(model, provider="cuda", settings=load_config(settings).onnxruntime)
    assert recorded.providers == [
        [
            (
                CUDA,
                {
                    "gpu_mem_limit": str(2048 << 20),
                    "arena_extend_strategy": "kSameAsRequested",
                    "cudnn_conv_algo_search": "DEFAULT",
                    "do_copy_in_default_stream": "0",
                },
            )
        ]
    ]


@pytest.mark.case("R5")
@pytest.mark.parametrize("command", ["transcribe", "serve", "validate-wer"])
def test_cuda_asked_for_without_cuda_is_an_error(
    tiny_model: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    clip = str(tiny.render("calibration").parent / "clean-0000.wav")
    arguments = {
        "transcribe": [clip, "-m", str(tiny_model)],
        "serve": [str(tiny_model), "--port", "0", "--no-ui"],
        "validate-wer": [str(tiny_model), str(tiny_model), "--limit", "1"],
    }[command]
    done = runner.invoke(app, [command, *arguments, "--device", "cuda"])
    assert done.exit_code == 1
    assert "CUDAExecutionProvider was asked for, but ONNX Runtime started CPU" in done.stderr


@pytest.mark.parametrize("command", ["transcribe", "validate-wer"])
def test_a_settings_file_reaches_the_session_of(
    command: str, tiny_model: Path, settings: Path, recorded: Recorded
) -> None:
    clip = str(tiny.render("calibration").parent / "clean-0000.wav")
    arguments = {
        "transcribe": [clip, "-m", str(tiny_model)],
        "validate-wer": [str(tiny_model), str(tiny_model), "--limit", "2", "--data", "tiny:calibration"],
    }[command]
    done = runner.invoke(app, [command, *arguments, "--config", str(settings)])
    assert done.exit_code in (0, 3), done.stderr
    assert recorded.options
    assert all(one.enable_cpu_mem_arena is False for one in recorded.options)
    assert all(one.intra_op_num_threads == 1 for one in recorded.options)


def test_a_settings_file_reaches_the_session_of_a_server(
    tiny_model: Path, settings: Path, recorded: Recorded
) -> None:
    """Up to the warm engine; then CUDA, which is not here, ends it."""
    arguments = [str(tiny_model), "--port", "0", "--no-ui", "--device", "cuda", "--config", str(settings)]
    assert runner.invoke(app, ["serve", *arguments]).exit_code == 1
    assert [options.enable_cpu_mem_arena for options in recorded.options] == [False]
    assert recorded.providers[0][0][1]["gpu_mem_limit"] == str(2048 << 20)


@pytest.mark.parametrize("command", ["transcribe", "serve", "validate-wer", "build-ort"])
def test_an_unknown_key_names_the_nearest(
    command: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "typo.toml"
    path.write_text("[onnxruntime.cuda]\ngpu_mem_limit = 4096\n", encoding="utf-8")
    clip = str(tiny.render("calibration").parent / "clean-0000.wav")
    first = {"transcribe": [clip, "-m"], "validate-wer": [str(tiny_model)]}.get(command, [])
    done = runner.invoke(app, [command, *first, str(tiny_model), "--config", str(path)])
    assert done.exit_code == 1
    assert "onnxruntime.cuda.gpu_mem_limit" in done.stderr
    assert "did you mean 'gpu_mem_limit_mb'" in done.stderr


@pytest.mark.parametrize(
    ("section", "line", "said"),
    [
        ("cpu", "threads = 0", "1 to 256"),
        ("cpu", "threads = 99999", "1 to 256"),
        ("cpu", "inter_op_threads = 257", "1 to 256"),
        ("cpu", "arena = 1", "cannot be 1"),
        ("cpu", "thread = 1", "did you mean 'threads'"),
        ("cuda", "gpu_mem_limit_mb = 0", "1 or more"),
        ("cuda", "gpu_mem_limit_mb = -5", "1 or more"),
        ("cuda", 'arena_extend_strategy = "kSameAsRequest"', "did you mean 'kSameAsRequested'"),
        ("cuda", 'cudnn_conv_algo_search = "heuristic"', "known here: HEURISTIC, DEFAULT, EXHAUSTIVE"),
        ("rocm", "threads = 1", "known here: cpu, cuda"),
    ],
)
def test_values_that_mean_nothing_are_refused(tmp_path: Path, section: str, line: str, said: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"[onnxruntime.{section}]\n{line}\n", encoding="utf-8")
    with pytest.raises(ArtifactError, match=said) as caught:
        load_config(path)
    assert "mine.toml" in str(caught.value)
    assert f"onnxruntime.{section}" in str(caught.value)


def test_a_settings_file_means_what_it_says(settings: Path) -> None:
    found = load_config(settings).onnxruntime
    assert found.cpu == OrtCpuConfig(threads=1, arena=False, spinning=True)
    assert found.cuda == OrtCudaConfig(2048, "kSameAsRequested", "DEFAULT", False)
    assert Config().onnxruntime == OrtConfig()


@pytest.mark.case("Q12")
def test_the_switch_is_on_wherever_int8_could_saturate(
    tmp_path: Path, model: Path, recorded: Recorded
) -> None:
    """Off only for the form that cannot: it would halve its speed. A file without its manifest is not trusted."""
    from calibration_samples import noise

    save_cache(tmp_path / "ranges.json", calibrate(model, noise(8), threads=1))
    engine = build_ort(
        model, OrtOptions(precision="int8", calibration=tmp_path / "ranges.json", threads=1)
    ).engine
    bare = tmp_path / "bare.onnx"
    shutil.copy(engine, bare)
    recorded.options.clear()
    for path in (engine, bare, model):
        OnnxRuntimeBackend(path, threads=1)
    on = [_entry(options, SWITCH) for options in recorded.options]
    assert on == [None, "1", "1"]


def _entry(options: Any, key: str) -> str | None:
    try:
        return str(options.get_session_config_entry(key))
    except RuntimeError:  # not set
        return None
