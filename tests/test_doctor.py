"""`svtool doctor`: honest about what starts, on this machine and on machines made up for the purpose."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import child_modules
from svtool import cli, doctor, probes
from svtool.doctor import CPU, CUDA, TENSORRT, Diagnosis, Facts, judge
from svtool.doctor_page import render
from svtool.progress import Silent
from svtool.staging import staging

TENSORRT_10 = """
__version__ = "10.3.0"
class Builder:
    def create_network(self): ...
    def create_optimization_profile(self): ...
    def build_serialized_network(self): ...
class OnnxParser: ...
class ILogger: ...
class Logger: ...
class MemoryPoolType: ...
class Runtime: ...
class TensorIOMode: ...
class BuilderFlag:
    FP16 = 0
    INT8 = 1
class NetworkDefinitionCreationFlag:
    EXPLICIT_BATCH = 0
    STRONGLY_TYPED = 1
"""
# weak typing, EXPLICIT_BATCH and the calibrators are gone
TENSORRT_11 = TENSORRT_10.split("class BuilderFlag")[0].replace("10.3.0", "11.4.0")
COMMANDS = {
    "export",
    "build-trt --flavor rtx",
    "build-trt --flavor classic",
    "calibrate",
    "build-ort",
    "verify",
    "validate-wer",
    "inspect",
    "transcribe ONNX",
    "transcribe plan",
    "serve",
}
GPU = {"name": "NVIDIA L4", "compute_capability": "8.9", "memory_bytes": 24 << 30, "free_bytes": 20 << 30}


def install(folder: Path, source: str, name: str = "tensorrt") -> None:
    (folder / f"{name}.py").write_text(source, encoding="utf-8")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One real run, every GPU hidden, with a TensorRT 10.3 that only looks like one."""
    folder = tmp_path_factory.mktemp("fake")
    install(folder, TENSORRT_10)
    environment = os.environ | {"PYTHONPATH": str(folder), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", "svtool", "doctor", "--json"],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def healthy(**changes: Any) -> Facts:
    """A machine with a GPU and everything installed."""
    works = {"version": "1.31.0", "error": None}
    tensorrt = {"error": None, "missing": [], "strongly_typed_flag": True, "weak_typing": False}
    facts = Facts(
        machine={
            "python": "3.11.1", "system": "Linux x86_64", "cpus": 8, "memory_bytes": 64 << 30,
            "memory_available_bytes": 60 << 30, "disks": {"/work": 100 << 30}, "temp": None,
            "cuda_visible_devices": None,
        },
        cpu_flags=("avx2", "avx512_vnni"),
        libraries=dict.fromkeys((*doctor.BASE, *doctor.EXPORT, *doctor.SERVE), works),
        hub={"huggingface-hub": "2.0"},
        providers={name: {"available": True, "started": True, "reason": None} for name in (CUDA, CPU)},
        needs={CUDA: ["libcublas.so.13"], TENSORRT: ["libnvinfer.so.10", "libcudart.so.13"]},
        tensorrt={"rtx": tensorrt | {"version": "1.7.1"}, "classic": tensorrt | {"version": "10.16.0"}},
        cuda={
            "driver": {"library": "libcuda.so.1", "version": "13.0", "error": None, "devices": [GPU]},
            "libraries": {"libcublas.so.13": "loader"},
            "bindings": {"pycuda": {"error": "not installed"}, "cuda-python": {"version": "13", "error": None}},
        },
        decoders={"formats": {".wav": None, ".mp3": None}, "codecs": {"vorbis": True}},
    )  # fmt: skip
    return dataclasses.replace(facts, **changes)


def verdict(facts: Facts, command: str) -> doctor.Verdict:
    return next(one for one in judge(facts).verdicts if one.command == command)


def without(facts: Facts, *names: str, error: str = "not installed") -> Facts:
    broken = {name: {"version": None, "error": error} for name in names}
    return dataclasses.replace(facts, libraries={**facts.libraries, **broken})


# `svtool doctor` without the trials that take seconds
CLI_DOCTOR = """
import sys
from svtool import cli, doctor
doctor.BASE = doctor.EXPORT = doctor.SERVE = ()
real = doctor.try_all
def quick(jobs, stage, *rest):
    wanted = {name: job for name, job in jobs.items() if name.startswith(("provid", "CPU"))}
    return dict.fromkeys(jobs, {}) | real(wanted, stage, *rest)
doctor.try_all = quick
sys.argv = ["svtool", "doctor", "--quiet"]
cli.main()
"""
NO_GPU = {
    "driver": {"library": None, "version": None, "error": "no NVIDIA driver", "devices": []},
    "libraries": {"libcublas.so.13": None},
    "bindings": {},
}


# --- a real run ----------------------------------------------------------------------------------


@pytest.mark.case("P4")
def test_providers_are_started_not_listed(report: dict[str, Any]) -> None:
    """ONNX Runtime for GPUs lists CUDA on every machine; with no device to see it cannot start."""
    import onnxruntime

    assert report["schema"] == "svtool.doctor/1"
    assert set(report["providers"]) >= set(onnxruntime.get_available_providers())
    assert report["providers"][CPU] == {"available": True, "started": True, "reason": None}
    for name, found in report["providers"].items():
        if name in (CUDA, TENSORRT):
            assert not found["started"]
            assert found["reason"], name
    plan = next(one for one in report["verdicts"] if one["command"] == "transcribe plan")
    assert not plan["ok"]
    assert ".onnx" in plan["fix"]


def test_a_missing_gpu_is_no_failure(report: dict[str, Any]) -> None:
    assert report["ok"]
    assert report["cuda"]["driver"]["devices"] == []
    assert report["machine"]["cuda_visible_devices"] == ""
    verdicts = {one["command"]: one for one in report["verdicts"]}
    assert set(verdicts) == COMMANDS
    assert all(verdicts[name]["ok"] for name in ("export", "transcribe ONNX", "build-ort"))
    assert all(one["ok"] or one["fix"] for one in report["verdicts"])


@pytest.mark.case("Q1", "P3", "P8")
def test_tensorrt_of_a_jetson_is_taken_and_its_pair_named(report: dict[str, Any]) -> None:
    assert report["tensorrt"]["classic"]["version"] == "10.3.0"
    assert "strongly typed by its network flag" in report["tensorrt_paths"]["classic"]
    assert "left alone" in report["tensorrt_paths"]["classic"]
    pair = report["onnxruntime_tensorrt_pair"]
    needs = [one for one in probes.provider_needs()[TENSORRT] if one.startswith("libnvinfer.so")]
    assert [pair["needs"]] == (needs or [None])
    assert pair["tensorrt"] == "10.3.0"
    assert pair["supported"] == (needs == ["libnvinfer.so.10"] if needs else None)


def test_every_advertised_audio_format_is_tried(report: dict[str, Any]) -> None:
    from svtool.utterances import AUDIO_SUFFIXES

    formats = report["decoders"]["formats"]
    assert set(formats) == AUDIO_SUFFIXES
    assert [suffix for suffix, why in formats.items() if why and not why.startswith("not tried")] == []
    assert [formats[suffix] for suffix in (".wav", ".flac", ".mp3", ".m4a", ".g722")] == [None] * 5


# --- TensorRT doubles ----------------------------------------------------------------------------


def tried(folder: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    install(folder, source)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    jobs = {"classic": ("tensorrt", {"flavor": "classic"})}
    return dict(doctor.try_all(jobs, "", Silent(), 30.0)["classic"])


@pytest.mark.case("Q1", "P8")
def test_tensorrt_11_without_the_removed_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tried(tmp_path, TENSORRT_11, monkeypatch)
    assert (found["version"], found["missing"], found["weak_typing"]) == ("11.4.0", [], False)
    assert doctor.path_words("classic", found).startswith(
        "always strongly typed, precision comes from the graph;"
    )
    facts = healthy(tensorrt={**healthy().tensorrt, "classic": found})
    assert verdict(facts, "build-trt --flavor classic").ok
    pair = judge(facts).pair
    assert pair["supported"] is False
    assert "needs TensorRT 10 (libnvinfer.so.10), here is 11.4.0: NOT a supported pair" in pair["words"]


@pytest.mark.case("B2")
@pytest.mark.parametrize(
    ("source", "why"),
    [
        (TENSORRT_10.replace("10.3.0", "8.6.1"), "TensorRT 8.6.1 is not supported: 10.3 to 11"),
        (TENSORRT_10.replace("class OnnxParser: ...", ""), "it lacks OnnxParser"),
        ("raise ImportError('libnvinfer.so.10: cannot open shared object file')", "libnvinfer.so.10"),
        ("import os; os.kill(os.getpid(), 11)", "signal 11"),
        ("raise RuntimeError('at import')", "at import"),
    ],
)
def test_a_tensorrt_that_cannot_be_used_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, why: str
) -> None:
    found = tried(tmp_path, source, monkeypatch)
    facts = healthy(tensorrt={**healthy().tensorrt, "classic": found})
    judged = verdict(facts, "build-trt --flavor classic")
    assert not judged.ok
    assert why in judged.why
    assert "[trt]" in str(judged.fix)
    assert verdict(facts, "build-trt --flavor rtx").ok


def test_a_probe_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    began = time.monotonic()
    jobs = {"classic": ("tensorrt", {"flavor": "classic"})}
    found = doctor.try_all(jobs, "", Silent(), 2.0)["classic"]
    assert found == {"error": "did not answer within 2 s"}
    assert time.monotonic() - began < 20


def test_a_provider_that_crashes_its_process_is_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child_modules.add("", tmp_path, monkeypatch, name="unused")
    (tmp_path / "onnxruntime.py").write_text("import os; os.abort()")
    jobs = {"cpu": ("provider", {"name": CPU, "folder": str(tmp_path)})}
    found = doctor.try_all(jobs, "", Silent(), 30.0)["cpu"]
    assert "signal 6" in found["error"]
    facts = healthy(providers={CPU: {"available": True, "started": False, "reason": found["error"]}})
    assert "signal 6" in verdict(facts, "transcribe ONNX").why


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_ended_early_it_leaves_nothing_in_the_temporary_folder(tmp_path: Path, sent: signal.Signals) -> None:
    modules, temp = tmp_path / "modules", tmp_path / "temp"
    for folder in (modules, temp):
        folder.mkdir()
    # names its providers at once and then never starts one
    hang = "import time\ndef get_available_providers(): return []\ndef __getattr__(name): time.sleep(60)\n"
    (modules / "onnxruntime.py").write_text(hang)
    environment = os.environ | {"PYTHONPATH": str(modules), "TMPDIR": str(temp)}
    command = [sys.executable, "-c", CLI_DOCTOR]
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        until = time.monotonic() + 60
        while not list(temp.glob("*/*.onnx")):
            assert time.monotonic() < until
            assert child.poll() is None
            time.sleep(0.05)
        child.send_signal(sent)
        child.communicate(timeout=30)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}.get(sent, -sent)
    if sent == signal.SIGKILL:  # no process can clean up after this one: the next run does
        with staging(temp, "doctor"):
            pass
    assert list(temp.iterdir()) == []


# --- verdicts ------------------------------------------------------------------------------------


def test_on_a_healthy_machine_everything_works() -> None:
    diagnosis = judge(healthy())
    assert {one.command for one in diagnosis.verdicts} == COMMANDS
    assert [one.command for one in diagnosis.verdicts if not one.ok] == []
    assert (diagnosis.exit_code, diagnosis.notes) == (0, ())
    assert diagnosis.pair["supported"] is True


def test_every_command_has_a_verdict() -> None:
    """`data` and `demo` do what others do, `doctor` is this one."""
    judged = {one.command.split()[0] for one in judge(healthy()).verdicts}
    commands = {
        one.name or one.callback.__name__.replace("_", "-")
        for one in cli.app.registered_commands
        if one.callback
    }
    assert commands - {"demo", "doctor"} == judged


def test_verify_wants_a_gpu_and_inspect_only_graphs() -> None:
    no_gpu = judge(healthy(cuda=NO_GPU)).verdicts
    found = {one.command: one for one in no_gpu}
    assert "svtool verify PLAN" in str(found["verify"].fix)
    assert found["calibrate"].ok
    broken = without(healthy(), "onnxruntime", "av", error="does not load")
    assert verdict(broken, "inspect").ok
    assert not verdict(broken, "calibrate").ok
    assert not verdict(broken, "verify").ok
    assert not verdict(without(healthy(), "onnx_ir"), "inspect").ok


def test_one_processor_is_one_cpu() -> None:
    one = healthy(machine={**healthy().machine, "cpus": 1})
    assert "1 CPU," in render(judge(one), 100).plain


@pytest.mark.parametrize(
    ("facts", "command", "why", "fix"),
    [
        (healthy(cuda=NO_GPU), "transcribe plan", "no NVIDIA driver", "svtool transcribe"),
        (healthy(cuda=NO_GPU), "build-trt --flavor classic", "target GPU", "svtool build-trt --flavor rtx"),
        (without(healthy(), "torch"), "export", "torch: not installed", "[export]"),
        (without(healthy(), "gradio"), "serve", "gradio: not installed", "[serve]"),
        (healthy(libraries={**healthy().libraries, "onnxruntime": {"version": "1.23.2", "error": None}}),
         "validate-wer", "onnxruntime 1.23.2 scores int8 twins wrongly", "1.31"),
        (healthy(libraries={**healthy().libraries, "onnxruntime": {"version": "1.23.2", "error": None}}),
         "verify", "onnxruntime 1.23.2 scores int8 twins wrongly", "1.31"),
        (healthy(cuda={**healthy().cuda, "bindings": {"cuda-python": {"error": "not installed"}}}),
         "transcribe plan", "cuda-python: not installed", "cuda-python"),
        (healthy(tensorrt={**healthy().tensorrt, "classic": {"error": "not installed"}},
                 cuda={**healthy().cuda, "driver": {"devices": [GPU | {"compute_capability": "9.0"}]}}),
         "transcribe plan", "compute capability 9.0", "[trt]"),
    ],
)  # fmt: skip
def test_what_is_missing_names_its_fix_and_breaks_nothing_else(
    facts: Facts, command: str, why: str, fix: str
) -> None:
    judged = verdict(facts, command)
    assert not judged.ok
    assert why in judged.why
    assert fix in str(judged.fix)
    assert judge(facts).exit_code == 0
    assert verdict(facts, "transcribe ONNX").ok


@pytest.mark.parametrize(
    "facts",
    [
        without(healthy(), "onnxruntime", error="does not load: libpython"),
        without(healthy(), "sentencepiece"),
        without(healthy(), "torch", error="does not load: libtorch_cpu.so"),
        healthy(providers={CPU: {"available": True, "started": False, "reason": "crashed"}}),
        healthy(decoders={"formats": {".wav": "no decoder"}, "codecs": {}}),
        healthy(decoders={"error": "was ended by signal 11"}),
        healthy(machine={**healthy().machine, "temp": "/tmp cannot be written: Read-only file system"}),
    ],
)
def test_a_broken_base_fails(facts: Facts) -> None:
    assert judge(facts).exit_code == 1
    assert any(not one.ok and one.fix for one in judge(facts).verdicts)


def test_a_gpu_that_onnx_runtime_does_not_use_is_noted() -> None:
    reason = "libcublasLt.so.13 is not found"
    started = {CPU: healthy().providers[CPU], CUDA: {"available": True, "started": False, "reason": reason}}
    assert any(reason in note for note in judge(healthy(providers=started)).notes)


def test_little_disk_no_hub_and_bad_formats_are_noted() -> None:
    facts = healthy(
        machine={**healthy().machine, "disks": {"/work": 1 << 30}},
        hub={"huggingface-hub": None, "modelscope": None},
        decoders={
            "formats": {".wav": None, ".mp3": "no decoder", ".amr": "not tried: no encoder"},
            "codecs": {},
        },
    )
    notes = " ".join(judge(facts).notes)
    assert "only 1.0 GiB" in notes
    assert "[hub]" in notes
    assert ".mp3 (no decoder)" in notes
    assert ".amr" not in notes


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("avx2", "avx512f", "avx512_vnni"), "do not saturate"),
        (("avx2", "avx_vnni"), "do not saturate"),
        (("avx2",), "no VNNI"),
        (("asimddp",), "nothing saturates"),
        ((), "not known"),
    ],
)
def test_what_the_processor_means_for_int8(flags: tuple[str, ...], says: str) -> None:
    assert says in doctor.int8_words(flags)


# --- probes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("[E:onnxruntime:Default, provider_bridge_ort.cc:2195 TryGetProviderInfo_CUDA] Failed to load library "
         "libonnxruntime_providers_cuda.so with error: libcublasLt.so.13: cannot open shared object file: No such "
         "file or directory", "libcublasLt.so.13 is not found"),
        ("\x1b[0;93m[W:onnxruntime:Default, a.cc:1 f] Failed to create  CUDAExecutionProvider.\x1b[m",
         "Failed to create CUDAExecutionProvider."),
        ("nothing of use", None),
    ],
)  # fmt: skip
def test_the_reason_is_read_from_what_onnx_runtime_logs(log: str, reason: str | None) -> None:
    assert probes.reason_of(log) == reason


def test_linked_libraries_are_those_the_loader_sees(tmp_path: Path) -> None:
    import _ctypes

    file = Path(_ctypes.__file__)
    assert any(name.startswith("libc.so") for name in probes.needed_libraries(file))
    (tmp_path / "text.so").write_text("no library")
    (tmp_path / "cut.so").write_bytes(file.read_bytes()[:64])
    (tmp_path / "wild.so").write_bytes(b"\x7fELF\x02\x01" + struct.pack("<58B", *[255] * 58))
    for name in ("text.so", "cut.so", "wild.so", "missing.so"):
        assert probes.needed_libraries(tmp_path / name) == []


def test_memory_counts_a_containers_limit(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 1000 kB\nMemAvailable: 600 kB\n")
    limit = tmp_path / "memory.max"
    assert probes.memory_bytes(meminfo, limit) == (1000 * 1024, 600 * 1024)
    limit.write_text("max\n")
    assert probes.memory_bytes(meminfo, limit) == (1000 * 1024, 600 * 1024)
    limit.write_text("409600\n")
    (tmp_path / "memory.current").write_text("102400\n")
    assert probes.memory_bytes(meminfo, limit) == (409600, 307200)
    assert probes.memory_bytes(tmp_path / "none", limit) == (None, None)


# --- the page ------------------------------------------------------------------------------------


@pytest.fixture
def diagnoses() -> list[Diagnosis]:
    broken = without(
        healthy(cuda=NO_GPU, decoders={"error": "was ended by signal 11"}), *doctor.BASE, "torch"
    )
    return [judge(healthy()), judge(broken)]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_lines_break_between_words_only(diagnoses: list[Diagnosis], width: int) -> None:
    for diagnosis in diagnoses:
        page = render(diagnosis, width).plain
        assert page.split() == render(diagnosis, 1000).plain.split()
        for line in page.splitlines():
            assert line == line.rstrip()
            assert len(line) <= width or len(line.split()) == 1, line


def test_the_page_names_what_was_found(diagnoses: list[Diagnosis]) -> None:
    page = " ".join(render(diagnoses[0], 100).plain.split())
    assert "GPU 0 NVIDIA L4, compute capability 8.9, 20.0 GiB of 24.0 GiB free" in page
    assert "driver CUDA 13.0" in page
    assert "TensorRT 10.16.0: strongly typed" in page
    for command in COMMANDS:
        assert f"{command}: ok" in page


def test_the_report_is_json_for_any_machine(diagnoses: list[Diagnosis]) -> None:
    for diagnosis in diagnoses:
        written = json.loads(json.dumps(diagnosis.to_json(), allow_nan=False))
        assert written["schema"] == "svtool.doctor/1"
        assert {one["command"] for one in written["verdicts"]} == COMMANDS
