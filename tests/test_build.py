from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import small_graph
from calibration_samples import Notes, noise, write_wave
from svtool import build as building
from svtool import build_ranges, flavor, manifest, parity, plan, precision, quantize
from svtool import graph as graphs
from svtool.assets import Assets
from svtool.backends import Batch, load_backend
from svtool.build import BuildOptions, SearchOptions, build
from svtool.calibration import Calibration, calibrate, read_cache, save_cache
from svtool.config import CalibrationConfig, Profile
from svtool.errors import ArtifactError, MissingDependency, UsageError
from svtool.profiles import activation_bytes, check_profiles, profile_shapes
from svtool.progress import Progress, Silent
from svtool.source import Source, read_source

SMALL = (Profile(2, 3),)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model and a finished cache beside it."""
    small_graph.write(tmp_path / "model.onnx")
    save_cache(tmp_path / "ranges.json", calibrate(tmp_path / "model.onnx", noise(70), threads=1))
    return tmp_path


@pytest.fixture(autouse=True)
def _no_committed_caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_ranges, "COMMITTED", tmp_path_factory.mktemp("committed"))


def ranges_of(
    source: Source, *, data: str | None = None, needed: bool = True, progress: Progress | None = None
) -> build_ranges.Ranges | None:
    return build_ranges.find_ranges(
        source,
        CalibrationConfig(),
        data=data,
        calibration=None,
        needed=needed,
        progress=progress or Silent(),
    )


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def interop_folder(folder: Path, assets: Assets, count: int = 3) -> Path:
    """A model with the files an export puts beside it, and a list of recordings."""
    folder.mkdir(exist_ok=True)
    for path in assets.root.iterdir():
        if path.is_file() and path.suffix != ".pt":
            shutil.copy(path, folder)
    small_graph.write(folder / "model.onnx")
    rng = np.random.default_rng(3)
    lines = []
    for index in range(count):
        write_wave(folder / f"{index}.wav", 0.2 * rng.standard_normal(16000 * (index + 1)))
        lines.append(json.dumps({"audio": f"{index}.wav", "text": "noise", "language": "en"}))
    (folder / "mine.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.mark.case("Q13")
def test_int8_plan_twin_and_manifests_from_a_list(tmp_path: Path, tiny_assets: Assets) -> None:
    """The whole chain with the real TensorRT-RTX: calibrate, rewrite, check, build, publish, reuse the cache."""
    pytest.importorskip("tensorrt_rtx")
    folder = interop_folder(tmp_path, tiny_assets)
    before = files(folder)
    notes = Notes()
    options = BuildOptions(precision="int8", data=str(folder / "mine.jsonl"), profiles=SMALL, threads=1)
    report = build(folder, options, notes)
    made = {"int8.plan", "int8.plan.json", "int8.onnx", "int8.onnx.json", "mine.calibration.json"}
    assert files(folder) == before | made
    assert report.plan_bytes == (folder / "int8.plan").stat().st_size > 10_000
    assert report.quantized_layers == 12
    assert report.parity["sqnr_db"] > 20
    assert report.requested["QUANTIZE"] == {"INT8": 12}
    assert report.requested["DEQUANTIZE"] == {"HALF": 24}
    assert report.requested["NORMALIZATION"] == {"FLOAT": 8}
    assert report.requested["SOFTMAX"] == {"FLOAT": 3}
    assert report.requested["MATRIX_MULTIPLY"] == {"HALF": 19}
    assert report.peak_rss_bytes["plan"] > 50 << 20
    assert any("used only 3 utterances" in line for line in report.warnings)
    assert any("of GPU memory per execution context" in line for line in notes.seen)
    assert any("of host memory" in line for line in notes.seen)
    json.dumps(report.to_json())
    plan, twin = (manifest.read_manifest(folder / name) for name in ("int8.plan", "int8.onnx"))
    assert plan["runtime"] == "tensorrt_rtx"
    assert (plan["twin"], plan["twin_sha256"]) == ("int8.onnx", manifest.sha256_file(folder / "int8.onnx"))
    assert plan["profiles"][0]["shapes"]["speech"] == [[1, 1, 560], [2, 50, 560], [2, 50, 560]]
    assert sorted(plan["profiles"][0]["shapes"]) == ["language", "speech", "speech_lengths", "textnorm"]
    assert (plan["head"], twin["head"]) == ("greedy", "logits")
    assert plan["calibration"]["used"] == 3
    assert plan["verified_on_gpu"] is False
    assert plan["tag_ids"] == list(small_graph.TAGS)
    assert len(plan["precision_map"]["int8"]) == 12
    assert twin["parity"]["switches"] == parity.SWITCHES
    backend = load_backend(folder / "int8.onnx", threads=1)
    feed = parity.make_feed(20, (20, 6))
    output = backend.infer(
        Batch(*(feed[name] for name in ("speech", "speech_lengths", "language", "textnorm")))
    )
    assert output.token_ids.shape == (2, 24)
    assert backend.tag_ids == small_graph.TAGS

    source = read_source(folder / "model.onnx", "greedy")
    again = ranges_of(source, data=options.data, progress=notes)
    assert again is not None
    assert again.cache == folder / "mine.calibration.json"
    (folder / "mine.jsonl").write_text(json.dumps({"audio": "0.wav", "text": "noise"}), encoding="utf-8")
    changed = ranges_of(source, data=options.data, progress=notes)
    assert changed is not None
    assert (changed.cache, changed.list) == (None, str(folder / "mine.jsonl"))
    assert "another utterance list" in notes.seen[-1]


def test_fp16_plan_needs_no_data(folder: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    output = folder / "out" / "half.plan"
    report = build(
        folder / "model.onnx", BuildOptions(profiles=SMALL, head="logits", output=output, threads=1)
    )
    assert files(output.parent) == {"half.plan", "half.plan.json", "half.onnx", "half.onnx.json"}
    assert report.parity["sqnr_db"] > 55
    assert report.requested["MATRIX_MULTIPLY"] == {"HALF": 19}
    assert "QUANTIZE" not in report.requested


def test_ctrl_c_ends_a_build_at_once_and_leaves_nothing(folder: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    before = files(folder)
    command = [
        sys.executable,
        "-m",
        "svtool",
        "build-trt",
        str(folder),
        "--profile",
        "8:30",
        "--profile",
        "16:15",
    ]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert child.stderr is not None
    for line in child.stderr:
        if "Building engine" in line:
            break
    assert len(group(child.pid)) == 2
    sent = time.monotonic()
    os.killpg(child.pid, signal.SIGINT)  # what a terminal does: parent and child
    assert child.wait(timeout=20) == 130
    assert time.monotonic() - sent < 3.0  # 0.3 s on a quiet machine; the build itself would go on for longer
    assert group(child.pid) == []
    assert files(folder) == before
    child.stderr.close()


def group(pgid: int) -> list[int]:
    """Living processes of a process group."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, number = entry.read_text().rsplit(")", 1)[1].split()[:3]
        except OSError:
            continue
        if int(number) == pgid and state != "Z":
            found.append(int(entry.parent.name))
    return found


def test_a_failing_build_leaves_nothing(folder: Path) -> None:
    """Ranges of another scale (from another tool, say) make a graph that no longer resembles the model."""
    pytest.importorskip("tensorrt_rtx")
    change_ranges(folder, lambda made: {"amax": {name: 100 * value for name, value in made.amax.items()}})
    before = files(folder)
    with pytest.raises(ArtifactError, match=r"does not resemble .*model\.onnx: .* dB against at least 3 dB"):
        build(
            folder,
            BuildOptions(precision="int8", calibration=folder / "ranges.json", profiles=SMALL, threads=1),
        )
    assert files(folder) == before


@pytest.mark.case("Q9", "Q10")
def test_ranges_that_clip_speech_are_refused_before_anything_is_built(folder: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    change_ranges(folder, lambda made: {"sqnr": {"db": 14.0, "max_db": 38.5}})
    before = files(folder)
    with pytest.raises(ArtifactError, match=r"cost 24\.5 dB against plain max ranges .* clip speech"):
        build(folder, BuildOptions(precision="int8", calibration=folder / "ranges.json", profiles=SMALL))
    assert files(folder) == before


def change_ranges(folder: Path, change: Callable[[Calibration], dict[str, Any]]) -> None:
    """A cache that is whole, with other content: `save_cache` writes its digest anew."""
    made = read_cache(folder / "ranges.json")
    save_cache(folder / "ranges.json", replace(made, **{"sqnr": {}} | change(made)))


def test_int8_without_data_names_the_option(folder: Path) -> None:
    with pytest.raises(UsageError, match="--data LIST"):
        build(folder, BuildOptions(precision="int8"))


def test_committed_caches_are_found_by_digest(folder: Path) -> None:
    source = read_source(folder / "model.onnx")
    build_ranges.COMMITTED.mkdir(exist_ok=True)
    (build_ranges.COMMITTED / "a-broken.json").write_text("{")
    shutil.copy(folder / "ranges.json", build_ranges.COMMITTED / "b-ours.json")
    found = ranges_of(source)
    assert found is not None
    assert found.cache == build_ranges.COMMITTED / "b-ours.json"
    other = replace(source, digest="0" * 64)
    with pytest.raises(UsageError, match="--data LIST"):
        ranges_of(other)
    assert ranges_of(other, needed=False) is None
    tiny = replace(other, manifest={"source": {"name": "tiny"}})
    found = ranges_of(tiny)
    assert found is not None
    assert (found.list, found.keep_as) == ("tiny:calibration", folder / "tiny-calibration.calibration.json")


@pytest.mark.case("Q2")
def test_a_named_cache_of_another_model_is_refused(folder: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    small_graph.write(folder / "model.onnx", seed=1)
    with pytest.raises(ArtifactError, match=r"ranges\.json was calibrated for another model"):
        build(folder, BuildOptions(precision="int8", calibration=folder / "ranges.json"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (BuildOptions(precision="fp8"), "choose fp16, int8 or int8-weights"),
        (BuildOptions(head="beam"), "greedy or logits"),
        (BuildOptions(output=Path("engine.bin")), r"does not end in \.plan"),
        (BuildOptions(precision="int8", data="a", calibration=Path("b")), "exclude each other"),
        (
            BuildOptions(precision="int8-weights", budget=SearchOptions(0.5)),
            "--weight-only and --drift-budget",
        ),
        (BuildOptions(flavor="best"), "not one of auto, rtx, classic"),
    ],
)
def test_options_that_mean_nothing_are_usage_errors(folder: Path, options: BuildOptions, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        build(folder, options)


def test_the_twin_replaces_no_file_of_another_kind(folder: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    (folder / "mine.onnx").write_bytes(b"somebody's")
    with pytest.raises(UsageError, match=r"mine\.onnx would be replaced by the twin of mine\.plan"):
        build(folder, BuildOptions(output=folder / "mine.plan"))
    manifest.write_manifest(folder / "mine.onnx", {"kind": "engine", "provider": "cpu"})
    with pytest.raises(UsageError, match=r"it is no twin of a plan"):
        build(folder, BuildOptions(output=folder / "mine.plan"))
    assert (folder / "mine.onnx").read_bytes() == b"somebody's"


def test_an_engine_apart_from_its_tokenizer_is_told(tmp_path: Path, tiny_assets: Assets) -> None:
    folder = interop_folder(tmp_path / "model", tiny_assets)
    source = read_source(folder / "model.onnx")
    said = source.apart(tmp_path)
    assert said is not None
    assert "lacks am.mvn, chn_jpn_yue_eng_ko_spectok.bpe.model, config.yaml" in said
    assert f"copy them from {folder}" in said
    assert source.apart(folder) is None


def test_the_twin_never_replaces_the_model(folder: Path) -> None:
    with pytest.raises(UsageError, match="would replace"):
        build(folder, BuildOptions(output=folder / "model.plan"))


def test_an_engine_is_no_model(folder: Path) -> None:
    manifest.write_manifest(folder / "model.onnx", {"kind": "engine", "precision": "int8"})
    with pytest.raises(ArtifactError, match=r"is an engine \(int8\)"):
        read_source(folder / "model.onnx")


@pytest.mark.case("B9")
def test_memory_is_estimated_and_absurd_profiles_are_refused(folder: Path) -> None:
    source = read_source(folder / "model.onnx")
    said: list[str] = []
    warned: list[str] = []
    few, many = Profile(8, 30), Profile(256, 240)
    estimates = check_profiles(source, (few, many), "greedy", said.append, warned.append)
    assert estimates["256:240"] > 500 * estimates["8:30"]
    assert [line.split(":")[0] for line in said] == ["profile 8", "profile 256"]
    assert len(warned) == 1
    assert warned[0].startswith("the profile 256:240 is very large (about ")
    for absurd, message in (
        (Profile(256, 1200), r"256:1200 means 20000 frames, .* takes 4096: at most 245\.76 seconds"),
        (
            Profile(10_000_000, 30),
            r"10000000:30 needs about .* more than any GPU has: choose a smaller batch",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            check_profiles(source, (few, absurd), "greedy", said.append, warned.append)
    full = replace(source, width=512, units=2048, heads=4, vocabulary=25055)
    assert 0.5 < activation_bytes(full, few, "greedy") / 2**30 < 1.0  # raw logits alone would be 0.4 GiB


@pytest.mark.case("P2")
def test_without_either_library_one_sentence_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tensorrt", "tensorrt_rtx"):
        monkeypatch.setitem(sys.modules, name, None)
    before = files(folder)
    with pytest.raises(MissingDependency) as raised:
        build(folder, BuildOptions(precision="int8", calibration=folder / "ranges.json"))
    text = str(raised.value)
    assert ".[trt-rtx]" in text
    assert ".[trt]" in text
    assert "\n" not in text
    assert files(folder) == before
    with pytest.raises(MissingDependency, match=r"\.\[trt\]"):
        flavor.choose_flavor("classic")


def fake_module(*, modern: bool, result: bytes | None = b"plan", accepts_profiles: bool = True) -> Any:
    """A double of the `tensorrt` module: names that one major lacks raise AttributeError, as in life."""
    seen: dict[str, Any] = {}
    words = ("language", "speech", "speech_lengths", "textnorm")
    tensors = [types.SimpleNamespace(name=name) for name in words]
    layer = types.SimpleNamespace(
        type=types.SimpleNamespace(name="SOFTMAX"),
        num_outputs=1,
        get_output=lambda _: types.SimpleNamespace(name="p", dtype=types.SimpleNamespace(name="FLOAT")),
    )
    network = types.SimpleNamespace(
        num_layers=1, num_inputs=4, get_layer=lambda _: layer, get_input=lambda index: tensors[index]
    )

    class Profiles:
        def set_shape(self, name: str, *shapes: Any) -> None:
            seen.setdefault("profile", {})[name] = shapes

        def __bool__(self) -> bool:
            return accepts_profiles

    class Config:
        def add_optimization_profile(self, profile: Profiles) -> int:
            return 0 if profile else -1

        def set_memory_pool_limit(self, pool: str, size: int) -> None:
            seen["workspace"] = size

        def create_timing_cache(self, known: bytes) -> Any:
            return known

        def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
            assert not ignore_mismatch
            self.cache = cache
            return not seen.get("refuse")

        def get_timing_cache(self) -> Any:
            return types.SimpleNamespace(serialize=lambda: self.cache + b" and more")

    class ILogger:
        INTERNAL_ERROR, ERROR, WARNING = 0, 1, 2

        def log(self, severity: int, msg: str) -> None: ...

    class Builder:
        def __init__(self, logger: ILogger) -> None:
            self.logger = logger

        def create_network(self, flags: int = 0) -> Any:
            seen["flags"] = flags
            return network

        def create_builder_config(self) -> Config:
            return Config()

        def create_optimization_profile(self) -> Profiles:
            return Profiles()

        def build_serialized_network(self, network: Any, config: Config) -> Any:
            self.logger.log(1, "Could not find any implementation for node {ForeignNode[...]}.")
            return None if result is None else memoryview(result)

    class Parser:
        num_errors = 0

        def __init__(self, network: Any, logger: ILogger) -> None: ...

        def parse_from_file(self, path: str) -> bool:
            return True

    module = types.ModuleType("tensorrt")
    module.__dict__.update(
        __version__="11.4.0" if modern else "10.3.0",
        ILogger=ILogger,
        Builder=Builder,
        OnnxParser=Parser,
        MemoryPoolType=types.SimpleNamespace(WORKSPACE="workspace"),
        seen=seen,
    )
    if not modern:
        module.__dict__["NetworkDefinitionCreationFlag"] = types.SimpleNamespace(
            STRONGLY_TYPED=1, EXPLICIT_BATCH=0
        )
    return module


def job(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "graph": str(folder / "model.onnx"),
        "plan": str(folder / "engine.plan"),
        "profiles": [profile_shapes(Profile(2, 3))],
        "profile_text": "2:3",
        "workspace_mb": 1,
        "expected": {"QuantizeLinear": 0, "DequantizeLinear": 0, "both": 0, "weights": 0},
        "estimate_s": 1.0,
    } | changes


@pytest.mark.case("Q1", "P3")
@pytest.mark.parametrize("modern", [False, True])
def test_one_path_builds_with_old_and_new_tensorrt(tmp_path: Path, modern: bool) -> None:
    """TensorRT 10.3 (JetPack) has the strong-typing flag; TensorRT 11 has no flags, no calibrators, no FP16."""
    trt = fake_module(modern=modern)
    report = plan.build_plan(trt, flavor.CLASSIC, job(tmp_path), Silent())
    assert (tmp_path / "engine.plan").read_bytes() == b"plan"
    assert trt.seen["flags"] == (0 if modern else 2)
    assert trt.seen["workspace"] == 1 << 20
    assert sorted(trt.seen["profile"]) == ["language", "speech", "speech_lengths", "textnorm"]
    assert report["library_version"] == ("11.4.0" if modern else "10.3.0")


@pytest.mark.case("Q1")
@pytest.mark.parametrize(
    "arguments", [["--help"], ["build-trt", "--help"], ["build-trt", "{}", "--flavor", "classic"]]
)
def test_a_bare_tensorrt_module_breaks_no_command(folder: Path, arguments: list[str]) -> None:
    (folder / "fake").mkdir()
    (folder / "fake" / "tensorrt.py").write_text("__version__ = '11.4.0'\n")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder / "fake"), *filter(None, sys.path)])
    }
    command = [sys.executable, "-m", "svtool", *(part.format(folder) for part in arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "AttributeError" not in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == (0 if "--help" in arguments else 1)
    if done.returncode:
        assert "no CUDA device answers here" in done.stderr


@pytest.mark.case("B3", "B13")
@pytest.mark.parametrize("result", [None, b""])
def test_a_builder_without_a_result_names_workspace_profile_and_next_step(
    tmp_path: Path, result: bytes | None
) -> None:
    with pytest.raises(ArtifactError) as raised:
        plan.build_plan(fake_module(modern=True, result=result), flavor.CLASSIC, job(tmp_path), Silent())
    for words in (
        *("TensorRT 11.4.0", "workspace 1 MB", "profiles 2:3", "ForeignNode"),
        *("a larger --workspace-mb", "svtool build-ort"),
    ):
        assert words in str(raised.value)
    assert files(tmp_path) == set()


@pytest.mark.case("B4")
def test_profiles_are_checked_before_and_after_the_library_sees_them(tmp_path: Path) -> None:
    good = profile_shapes(Profile(2, 3))
    plan.check_shapes(good)
    with pytest.raises(ArtifactError, match="lacks the inputs textnorm"):
        plan.check_shapes({name: shape for name, shape in good.items() if name != "textnorm"})
    for bad in ([[2], [1], [4]], [[1], [5], [4]], [[0], [1], [2]]):
        with pytest.raises(ArtifactError, match="min <= opt <= max"):
            plan.check_shapes({**good, "language": bad})
    refusing = fake_module(modern=True, accepts_profiles=False)
    with pytest.raises(ArtifactError, match="profile is not valid"):
        plan.build_plan(refusing, flavor.CLASSIC, job(tmp_path), Silent())


@pytest.mark.case("B4")
def test_the_real_library_hides_a_broken_profile_until_it_is_asked() -> None:
    trt = pytest.importorskip("tensorrt_rtx")
    builder = trt.Builder(trt.Logger(trt.Logger.INTERNAL_ERROR))
    network = builder.create_network(0)
    network.add_input("speech", trt.float32, (-1, -1, 560))
    shapes = {"speech": [[1, 9, 560], [1, 5, 560], [1, 9, 560]]}
    with pytest.raises(ArtifactError, match="profile is not valid"):
        plan.add_profile(builder, builder.create_builder_config(), network, shapes)
    with pytest.raises(ArtifactError, match="the network has the inputs"):
        plan.add_profile(builder, builder.create_builder_config(), network, {"sound": shapes["speech"]})


def test_parser_errors_are_all_shown(tmp_path: Path) -> None:
    trt = fake_module(modern=True)
    trt.OnnxParser.num_errors = 2
    trt.OnnxParser.parse_from_file = lambda self, path: False
    trt.OnnxParser.get_error = lambda self, index: f"problem {index}"
    with pytest.raises(ArtifactError, match="cannot read the graph: problem 0; problem 1"):
        plan.build_plan(trt, flavor.CLASSIC, job(tmp_path), Silent())


def test_a_network_with_fewer_quantizers_than_the_graph_is_not_built(tmp_path: Path) -> None:
    expected = {"QuantizeLinear": 12, "DequantizeLinear": 24, "both": 0, "weights": 0}
    with pytest.raises(ArtifactError, match="0 QUANTIZE layers, the graph 12"):
        plan.build_plan(fake_module(modern=True), flavor.CLASSIC, job(tmp_path, expected=expected), Silent())


def test_auto_prefers_classic_only_where_a_gpu_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", types.ModuleType("tensorrt"))
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", types.ModuleType("tensorrt_rtx"))
    devices = [1]
    monkeypatch.setattr(flavor, "cuda_device_count", lambda: devices[0])
    assert flavor.choose_flavor() is flavor.CLASSIC
    devices[0] = 0
    assert flavor.choose_flavor() is flavor.RTX
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    with pytest.raises(ArtifactError, match=r"builds only on a machine with the target GPU.*\.\[trt-rtx\]"):
        flavor.choose_flavor()


def test_old_onnxruntime_is_said_beside_int8_figures() -> None:
    notes = Notes()
    for version, quantized, said in (
        ("1.23.2", ["w_1"], True),
        ("1.31.1", ["w_1"], False),
        ("1.23.2", [], False),
    ):
        notes.seen.clear()
        prepared = {"calibration": None, "quantized": quantized, "parity": {"onnxruntime": version}}
        building._note_runtime(prepared, building._Notes(notes))
        assert bool(notes.seen) is said


@pytest.mark.case("Q9", "B12")
@pytest.mark.parametrize("outcome", ["passes", "fails", "cannot run"])
def test_on_a_gpu_machine_the_engine_itself_is_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    """There is no GPU here: what `verify` measures is tested over doubles, what a build does with it here."""
    pytest.importorskip("tensorrt_rtx")

    def verified(path: Path, **_: Any) -> types.SimpleNamespace:
        assert path.is_file()
        assert manifest.read_manifest(path)["verified_on_gpu"] is False
        if outcome == "cannot run":
            raise ArtifactError("this GPU is not one of the plan's")
        failure = "the engine returned numbers that are not finite" if outcome == "fails" else None
        cases = [types.SimpleNamespace(name="square wave", failure=failure)]
        return types.SimpleNamespace(gpu="a GPU", results=cases)

    monkeypatch.setattr(building, "has_cuda_device", lambda: True)
    monkeypatch.setattr(building, "verify", verified)
    before = files(folder)
    chosen = BuildOptions(profiles=SMALL, flavor="rtx", threads=1)
    if outcome == "fails":
        with pytest.raises(ArtifactError, match=r"wrong in 1 of 1 cases \(square wave: .* not kept"):
            build(folder, chosen)
        assert files(folder) == before
        return
    report = build(folder, chosen)
    assert report.verified_on == ("a GPU" if outcome == "passes" else None)
    assert any("it was not run: this GPU" in line for line in report.warnings) is (outcome == "cannot run")
    assert {"fp16.plan", "fp16.onnx"} <= files(folder)


def test_a_plan_for_one_kind_of_gpu(folder: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    output = folder / "out" / "ada.plan"
    chosen = BuildOptions(profiles=SMALL, output=output, compute_capability=("8.9",), flavor="rtx", threads=1)
    report = build(folder, chosen)
    assert report.compute_capability == manifest.read_manifest(output)["compute_capability"] == "8.9"
    before = files(folder)
    for wrong in ("9.0", "foo", "89"):
        with pytest.raises(UsageError, match=rf"for compute capability {wrong}: it knows 7\.5, 8\.0, "):
            build(folder, replace(chosen, compute_capability=("8.9", wrong)))
    assert files(folder) == before


def test_options_of_the_other_library_are_usage_errors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorrt_rtx")
    with pytest.raises(UsageError, match="--timing-cache is for TensorRT: "):
        build(folder, BuildOptions(flavor="rtx", timing_cache=folder / "t.cache"))
    monkeypatch.setitem(sys.modules, "tensorrt", types.ModuleType("tensorrt"))
    monkeypatch.setattr(flavor, "cuda_device_count", lambda: 1)
    with pytest.raises(UsageError, match="--compute-capability is for TensorRT-RTX"):
        build(folder, BuildOptions(flavor="classic", compute_capability=("8.9",)))


def test_int8_products_are_counted_in_the_parsed_network(tmp_path: Path) -> None:
    """By the real parser: a layer whose Q/DQ was lost is noticed whatever the other counts say."""
    trt = pytest.importorskip("tensorrt_rtx")
    small_graph.write(tmp_path / "model.onnx")
    ranges = calibrate(tmp_path / "model.onnx", noise(8), threads=1)
    half = precision.to_fp16(graphs.load_model(tmp_path / "model.onnx"), ranges.absmax)
    for changed, expected in (
        (quantize.to_int8(half, ranges.amax), {"both": 12, "weights": 0}),
        (quantize.to_int8_weights(half), {"both": 0, "weights": 12}),
        (half, {"both": 0, "weights": 0}),
    ):
        graphs.save_model(changed, tmp_path / "graph.onnx")
        logger = trt.Logger(trt.Logger.ERROR)
        network = trt.Builder(logger).create_network(0)
        parser = trt.OnnxParser(network, logger)
        assert parser.parse_from_file(str(tmp_path / "graph.onnx"))
        assert plan.int8_products(network) == expected
    with pytest.raises(
        ArtifactError, match=r"multiplies 0 layers in int8, the precision map has 12: not built"
    ):
        plan.check_requested(
            plan.requested_precision(network),
            plan.int8_products(network),
            {"QuantizeLinear": 0, "DequantizeLinear": 0, "both": 12, "weights": 0},
        )


def test_a_timing_cache_is_read_and_written_again(tmp_path: Path) -> None:
    trt = fake_module(modern=True)
    path = tmp_path / "kernels.cache"
    path.write_bytes(b"known")
    plan.build_plan(trt, flavor.CLASSIC, job(tmp_path, timing_cache=str(path)), Silent())
    assert path.read_bytes() == b"known and more"
    trt.seen["refuse"] = True
    with pytest.raises(ArtifactError, match=r"does not accept the timing cache .*kernels\.cache"):
        plan.build_plan(trt, flavor.CLASSIC, job(tmp_path, timing_cache=str(path)), Silent())
    assert path.read_bytes() == b"known and more"
