"""The TensorRT backend over doubles of the device and of the library, and every name it uses against the library."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trt_double
from svtool import flavor, manifest, precision, tiny
from svtool import plan as building
from svtool.assets import Assets
from svtool.audio import decode_audio
from svtool.backends import Backend, Batch, FloatArray, Limits, Output, load_backend, trt
from svtool.errors import ArtifactError, MissingDependency, SvtoolError
from svtool.frontend import pad_batch
from svtool.graph import load_model, save_model
from svtool.recognizer import Options, Recognizer, Transcript
from trt_double import FakeDevice, FakeTensorRT, Misuse, Opened, open_double

# every class, method and enum member that svtool uses and TensorRT-RTX has
USED = {
    "ILogger": ("log", "INTERNAL_ERROR", "ERROR", "WARNING"),
    "IProgressMonitor": ("phase_start", "phase_finish", "step_complete"),
    "Builder": (
        "create_network",
        "create_builder_config",
        "create_optimization_profile",
        "build_serialized_network",
    ),
    "INetworkDefinition": ("num_layers", "get_layer", "num_inputs", "get_input"),
    "ILayer": ("type", "get_output", "get_input", "num_outputs"),
    "ITensor": ("name", "dtype"),
    "IBuilderConfig": (
        "set_memory_pool_limit",
        "add_optimization_profile",
        "progress_monitor",
        "builder_optimization_level",
        "num_compute_capabilities",
        "set_compute_capability",
        "create_timing_cache",
        "set_timing_cache",
        "get_timing_cache",
    ),
    "ComputeCapability": ("SM75", "SM80", "SM86", "SM89", "SM120"),
    "IOptimizationProfile": ("set_shape", "__bool__"),
    "IHostMemory": ("nbytes",),
    "MemoryPoolType": ("WORKSPACE",),
    "OnnxParser": ("parse_from_file", "num_errors", "get_error"),
    "Runtime": ("deserialize_cuda_engine", "get_engine_validity"),
    "EngineValidity": ("INVALID", "VALID", "SUBOPTIMAL"),
    "EngineInvalidityDiagnostics": ("__members__", "VERSION_MISMATCH", "UNSUPPORTED_CC"),
    "TensorIOMode": ("INPUT", "OUTPUT"),
    "CudaGraphStrategy": ("WHOLE_GRAPH_CAPTURE", "DISABLED"),
    "IRuntimeConfig": ("cuda_graph_strategy",),
    "ICudaEngine": (
        "create_execution_context",
        "create_runtime_config",
        "device_memory_size_v2",
        "num_io_tensors",
        "num_optimization_profiles",
        "get_tensor_name",
        "get_tensor_mode",
        "get_tensor_dtype",
        "get_tensor_shape",
        "get_tensor_profile_shape",
    ),
    "IExecutionContext": (
        "set_input_shape",
        "infer_shapes",
        "set_tensor_address",
        "get_tensor_shape",
        "execute_async_v3",
        "set_optimization_profile_async",
    ),
}
SIGNATURES = {
    "ICudaEngine.create_execution_context": ("runtime_config:", "IExecutionContext"),
    "ICudaEngine.get_tensor_profile_shape": ("name: str", "profile_index:"),
    "ICudaEngine.get_tensor_shape": ("name: str", "Dims"),
    "IExecutionContext.set_input_shape": ("name: str", "shape: tuple", "-> bool"),
    "IExecutionContext.infer_shapes": ("-> list[str]",),
    "IExecutionContext.get_tensor_shape": ("name: str", "Dims"),
    "IExecutionContext.set_tensor_address": ("name: str", "memory:", "-> bool"),
    "IExecutionContext.execute_async_v3": ("stream_handle:", "-> bool"),
    "IExecutionContext.set_optimization_profile_async": ("profile_index:", "stream_handle:", "-> bool"),
    "IBuilderConfig.add_optimization_profile": ("-> int",),
    "IBuilderConfig.set_compute_capability": ("compute_capability:", "index:", "-> bool"),
    "IBuilderConfig.set_timing_cache": ("cache:", "ignore_mismatch: bool", "-> bool"),
    "OnnxParser.parse_from_file": ("model: str", "-> bool"),
    "Runtime.deserialize_cuda_engine": ("serialized_engine:",),
    "Runtime.get_engine_validity": ("buffer:", "-> tuple"),
}
# asked for by hasattr: older or other flavors only
OPTIONAL = {"device_memory_size", "STRONGLY_TYPED", "NetworkDefinitionCreationFlag"}


@pytest.mark.parametrize("owner", USED)
def test_every_name_used_exists(owner: str) -> None:
    library = pytest.importorskip("tensorrt_rtx")
    missing = [name for name in USED[owner] if not hasattr(getattr(library, owner), name)]
    assert missing == []


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_the_ones_used(name: str) -> None:
    library = pytest.importorskip("tensorrt_rtx")
    owner, method = name.split(".")
    text = getattr(getattr(library, owner), method).__doc__
    assert [part for part in SIGNATURES[name] if part not in text] == []


def test_the_table_names_what_the_code_uses() -> None:
    """Attributes read from objects of the library, found in the source, are all in the table above."""
    owned = r"\b(?:engine|context|config|builder|network|parser|profile|_engine|_context|_runtime|trt|_trt)\.(\w+)"
    source = inspect.getsource(trt.TensorRTBackend) + inspect.getsource(flavor.make_logger)
    source += inspect.getsource(building)
    known = {name for owner, names in USED.items() for name in (owner, *names)} | OPTIONAL
    ours = {
        "index",
        "least",
        "most",
        "padded",
        "nptype",
    }  # fields of our own profile; a function of the library
    assert {name for name in re.findall(owned, source) if not name.startswith("__")} - known - ours == set()


@pytest.mark.parametrize("owner", [name for name in USED if hasattr(trt_double, name)])
def test_the_doubles_have_no_name_that_the_library_lacks(owner: str) -> None:
    library = pytest.importorskip("tensorrt_rtx")
    names = {name for name in vars(getattr(trt_double, owner)) if not name.startswith("_")}
    assert names - {"compute"} - set(dir(getattr(library, owner))) == set()


# --- the plan and the machine -----------------------------------------------------------------------------------


def plan(tmp_path: Path, **facts: Any) -> Path:
    path = tmp_path / "int8.plan"
    path.write_bytes(b"plan bytes")
    described = {
        "kind": "engine",
        "runtime": "tensorrt_rtx",
        "precision": "int8",
        "model": "model.onnx",
        "twin": "int8.onnx",
        "tag_ids": [1],
        "compute_capability": "portable",
        "built_with": {"tensorrt_rtx": "1.7.1.116"},
    }
    manifest.write_manifest(path, described | facts)
    return path


def test_without_a_gpu_the_twin_is_named(tmp_path: Path) -> None:
    if flavor.has_cuda_device():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ArtifactError, match=r"needs an NVIDIA GPU.*svtool transcribe FILE -m .*int8\.onnx"):
        load_backend(plan(tmp_path))


@pytest.mark.case("B8")
def test_a_plan_without_its_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "int8.plan").write_bytes(b"plan")
    with pytest.raises(ArtifactError, match="has no manifest"):
        load_backend(tmp_path / "int8.plan")


@pytest.mark.case("B8")
def test_the_manifest_is_held_against_the_machine_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a device that answers, every mismatch is named before the library is asked to read the plan."""
    monkeypatch.setattr(trt, "has_cuda_device", lambda: True)
    monkeypatch.setattr(trt, "compute_capability", lambda: "8.9")
    with pytest.raises(
        ArtifactError, match=r"'onnxruntime', which is no TensorRT.*build-trt .*model\.onnx --int8"
    ):
        trt.open_plan(plan(tmp_path, runtime="onnxruntime"))
    pytest.importorskip("tensorrt_rtx")
    with pytest.raises(ArtifactError, match=r"built with TensorRT-RTX 1\.2, here is"):
        trt.open_plan(plan(tmp_path, built_with={"tensorrt_rtx": "1.2"}))
    with pytest.raises(ArtifactError, match=r"capability 8\.6, 12\.0, this GPU has 8\.9.*build-trt"):
        trt.open_plan(plan(tmp_path, compute_capability="8.6, 12.0"))
    here = flavor.version(flavor.import_flavor(flavor.RTX))
    for bytes_left in (b"", b"plan"):
        changed = plan(tmp_path, built_with={"tensorrt_rtx": here}, compute_capability="8.6, 8.9")
        changed.write_bytes(bytes_left)
        with pytest.raises(ArtifactError, match="not the file its manifest describes"):
            trt.open_plan(changed)
    if not flavor.is_installed(flavor.CLASSIC):
        with pytest.raises(MissingDependency, match=r"\.\[trt\]"):
            trt.open_plan(plan(tmp_path, runtime="tensorrt", compute_capability="8.9"))
    monkeypatch.setattr(trt, "is_installed", lambda _: True)
    for built_for in ("8.0", "portable", None):
        with pytest.raises(ArtifactError, match=rf"capability {built_for}, this GPU has 8\.9"):
            trt.open_plan(plan(tmp_path, runtime="tensorrt", compute_capability=built_for))


@pytest.mark.case("B8")
def test_what_the_library_says_of_a_plan_is_passed_on(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = FakeDevice()
    library = FakeTensorRT(files / "greedy.onnx", trt_double.PROFILES, device)
    monkeypatch.setattr(trt, "has_cuda_device", lambda: True)
    monkeypatch.setattr(trt, "compute_capability", lambda: "9.0")
    monkeypatch.setattr(trt, "is_installed", lambda _: True)
    monkeypatch.setattr(trt, "import_flavor", lambda _: library)
    monkeypatch.setattr(trt, "open_device", lambda: device)
    foreign = plan(tmp_path, built_with={"tensorrt_rtx": "9.9.9"})
    with pytest.raises(ArtifactError, match=r"does not accept .*int8\.plan \(magicTag.*build-trt"):
        trt.open_plan(foreign)
    assert device.closed
    library.diagnostics = 2
    with pytest.raises(
        ArtifactError, match=r"portable\) does not run on this GPU \(9\.0\): UNSUPPORTED_CC; "
    ):
        trt.TensorRTBackend(foreign, manifest.read_manifest(foreign), flavor.RTX, library, FakeDevice())


def test_real_validity_answers_as_the_double_does(tmp_path: Path) -> None:
    """This call of the real library needs no GPU."""
    library = pytest.importorskip("tensorrt_rtx")
    logger, _ = flavor.make_logger(library)
    validity, found = library.Runtime(logger).get_engine_validity(b"no engine")
    assert validity == library.EngineValidity.INVALID
    assert int(found) & int(library.EngineInvalidityDiagnostics.MALFORMED_ENGINE)


def test_contexts_that_do_not_fit_are_refused_before_any_is_made(files: Path, tmp_path: Path) -> None:
    each = trt_double.ICudaEngine.device_memory_size_v2
    open_double(files / "greedy.onnx", tmp_path, device=FakeDevice(free=2 * each), workers=2).backend.close()
    device = FakeDevice(free=2 * each - (1 << 20))
    with pytest.raises(SvtoolError, match=r"needs 2 x 64 MiB .* 127 of 8192 MiB are free: .*--profile"):
        open_double(files / "greedy.onnx", tmp_path, device=device, workers=2)
    assert device.allocations == 0


# --- the same texts as the twin ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`twin.onnx`: the fp16 graph with the logits head; `greedy.onnx`: what a plan is built from."""
    folder = tmp_path_factory.mktemp("double")
    model = load_model(tiny_model)
    tags = load_backend(tiny_model, threads=1).tag_ids
    twin = precision.to_fp16(model)
    save_model(twin, folder / "twin.onnx")
    save_model(precision.add_greedy_head(twin, tags), folder / "greedy.onnx")
    return folder


@pytest.fixture
def opened(files: Path, tmp_path: Path) -> Iterator[Opened]:
    made = open_double(files / "greedy.onnx", tmp_path)
    yield made
    if not made.device.closed:
        made.backend.close()


@pytest.fixture(scope="module")
def clips() -> list[FloatArray]:
    folder = tiny.render("calibration").parent
    names = [f"{part}-{number:04d}.wav" for part in ("clean", "10db", "5db") for number in range(20, 30)]
    return [decode_audio(folder / name).samples for name in names]


@pytest.fixture(scope="module")
def expected(files: Path, clips: list[FloatArray], tiny_assets: Assets) -> list[str]:
    """What the twin hears, one clip at a time."""
    twin = Recognizer(load_backend(files / "twin.onnx", threads=1), tiny_assets)
    return texts(twin.transcribe(clips, Options(batch_size_n=1)))


def texts(results: list[Transcript | SvtoolError]) -> list[str]:
    assert all(isinstance(one, Transcript) for one in results), results
    return [one.text for one in results if isinstance(one, Transcript)]


def batch_of(lengths: list[int], *, frames: int | None = None, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    feats, lens = pad_batch([rng.standard_normal((one, 560)).astype(np.float32) for one in lengths])
    if frames is not None:
        feats = np.pad(feats, ((0, 0), (0, frames - feats.shape[1]), (0, 0)))
    count = len(lengths)
    return Batch(feats, lens, np.zeros(count, np.int32), np.full(count, 15, np.int32))


def assert_same(one: Output, two: Output, atol: float = 2e-2) -> None:
    assert np.array_equal(one.logit_lens, two.logit_lens)
    for item, length in enumerate(one.logit_lens):
        assert np.array_equal(one.token_ids[item, :length], two.token_ids[item, :length])
        np.testing.assert_allclose(
            one.token_logprobs[item, :length], two.token_logprobs[item, :length], atol=atol
        )
    np.testing.assert_allclose(one.tag_logits, two.tag_logits, atol=atol)


@pytest.mark.case("R1")
@pytest.mark.parametrize("size", [1, 3, 7, 30])
def test_texts_are_the_twins_at_every_batch_size(
    opened: Opened, clips: list[FloatArray], expected: list[str], tiny_assets: Assets, size: int
) -> None:
    recognizer = Recognizer(opened.backend, tiny_assets)
    heard = texts(recognizer.transcribe(clips, Options(batch_size_n=size, batch_size_s=1e9)))
    assert heard == expected
    assert sum(map(bool, heard)) == len(clips)


@pytest.mark.case("R2")
def test_mates_and_padding_do_not_matter(opened: Opened, files: Path) -> None:
    twin = load_backend(files / "twin.onnx", threads=1)
    both, alone = batch_of([10, 400]), batch_of([10])
    assert_same(opened.backend.infer(both), twin.infer(both))
    together, single = opened.backend.infer(both), opened.backend.infer(alone)
    assert np.array_equal(together.token_ids[0, :14], single.token_ids[0])
    both.feats[0, 10:] = 50.0
    assert_same(opened.backend.infer(both), together)


@pytest.mark.case("R4")
def test_16_threads_with_a_backend_each_agree(
    files: Path, tmp_path: Path, clips: list[FloatArray], expected: list[str], tiny_assets: Assets
) -> None:
    def run(_: int) -> list[str]:
        own = open_double(files / "greedy.onnx", tmp_path)
        try:
            return texts(Recognizer(own.backend, tiny_assets).transcribe(clips[:4]))
        finally:
            own.backend.close()

    run(0)
    with ThreadPoolExecutor(16) as pool:
        assert all(one == expected[:4] for one in pool.map(run, range(16)))


@pytest.mark.case("R4")
def test_another_thread_is_refused_by_name(opened: Opened) -> None:
    with ThreadPoolExecutor(1, thread_name_prefix="stranger") as pool:
        for call in (lambda: opened.backend.infer(batch_of([5])), opened.backend.close):
            with pytest.raises(SvtoolError, match="'MainThread' and was called from 'stranger_0'"):
                pool.submit(call).result()
    opened.backend.infer(batch_of([5]))


# --- shapes -------------------------------------------------------------------------------------------------------


@pytest.mark.case("B5")
@pytest.mark.parametrize(("count", "frames"), [(33, 20), (9, 85), (5, 251), (1, 501), (32, 500), (1, 0)])
def test_outside_every_profile_nothing_is_enqueued(opened: Opened, count: int, frames: int) -> None:
    with pytest.raises(
        SvtoolError, match=rf"32 x 84, 8 x 250, 4 x 500 frames, not {count} x {frames}: split"
    ):
        opened.backend.infer(
            Batch(np.zeros((count, frames, 560), np.float32), *(np.zeros(count, np.int32) for _ in range(3)))
        )
    assert opened.engine.contexts[0].enqueued == 0


@pytest.mark.case("B5", "B12")
@pytest.mark.parametrize(("count", "frames"), [(32, 84), (8, 250), (4, 500), (1, 1), (1, 500), (8, 85)])
def test_every_corner_of_every_profile_runs(opened: Opened, files: Path, count: int, frames: int) -> None:
    batch = batch_of([max(1, frames - 7 * row) for row in range(count)])
    twin = load_backend(files / "twin.onnx", threads=1)
    output = opened.backend.infer(batch)
    assert output.token_ids.shape == (count, frames + 4)
    assert_same(output, twin.infer(batch))


@pytest.mark.case("B5")
@pytest.mark.parametrize("lengths", [[1], [7], [3, 2]])
def test_below_a_profiles_minimum_the_batch_is_padded_up(
    files: Path, tmp_path: Path, lengths: list[int]
) -> None:
    small = open_double(files / "greedy.onnx", tmp_path, [((2, 8), (4, 20), (4, 20))])
    batch = batch_of(lengths)
    output = small.backend.infer(batch)
    assert output.token_ids.shape == (len(lengths), max(lengths) + 4)
    assert_same(output, load_backend(files / "twin.onnx", threads=1).infer(batch))


def test_the_profile_with_the_least_padding_is_chosen(opened: Opened) -> None:
    context = opened.engine.contexts[0]
    for count, frames, wanted in ((1, 84, 0), (1, 85, 1), (9, 10, 0), (2, 251, 2), (1, 300, 2), (2, 5, 0)):
        opened.backend.infer(batch_of([frames] * count))
        assert context._profile == wanted


@pytest.mark.case("B5", "R9")
def test_the_recognizer_batches_by_pairs(files: Path, tmp_path: Path, tiny_assets: Assets) -> None:
    """Every batch fits a profile although its length and its number are each allowed alone."""
    pairs = ((16, 20), (4, 60), (2, 120))
    small = open_double(files / "greedy.onnx", tmp_path, [((1, 1), most, most) for most in pairs])
    shapes = []
    real = small.backend.infer

    def noted(batch: Batch) -> Output:
        shapes.append(batch.feats.shape[:2])
        return real(batch)

    small.backend.infer = noted  # type: ignore[method-assign]
    rng = np.random.default_rng(4)
    seconds = [7.0] * 3 + [3.0] * 6 + [1.0] * 20
    waves = [0.1 * rng.standard_normal(int(one * 16000)).astype(np.float32) for one in seconds]
    results = Recognizer(small.backend, tiny_assets).transcribe(waves, Options(batch_size_s=1e9))
    assert all(isinstance(one, Transcript) for one in results)
    assert sum(count for count, _ in shapes) == len(waves)
    assert [count for count, _ in shapes] == [
        2,
        2,
        4,
        4,
        16,
        1,
    ]  # none mixes lengths and numbers of two profiles
    assert len(shapes) == small.engine.contexts[0].enqueued


def test_limits_without_profiles_are_as_before() -> None:
    assert Limits().batch_for(400) is None
    assert Limits(max_batch=3).batch_for(400) == 3
    pairs = Limits(32, 500, ((32, 84), (16, 250), (8, 500)))
    assert [pairs.batch_for(frames) for frames in (1, 84, 85, 250, 251, 500)] == [32, 32, 16, 16, 8, 8]


# --- buffers, errors ----------------------------------------------------------------------------------------------


def test_outputs_stay_when_the_next_call_comes(opened: Opened) -> None:
    first = opened.backend.infer(batch_of([40, 12]))
    kept = (first.token_ids.copy(), first.token_logprobs.copy(), first.tag_logits.copy())
    opened.backend.infer(batch_of([60, 60, 60], seed=9))
    assert all(
        np.array_equal(one, two)
        for one, two in zip(kept, (first.token_ids, first.token_logprobs, first.tag_logits), strict=True)
    )


@pytest.mark.case("R8", "R9")
def test_new_lengths_allocate_and_build_nothing(opened: Opened) -> None:
    """30 lengths never seen: no memory, no context, no engine is made, and no call takes a second."""
    before = opened.device.allocations
    engine = opened.library.engine
    for frames in np.random.default_rng(8).integers(1, 251, 30):
        began = time.thread_time()
        opened.backend.infer(batch_of([int(frames)]))
        assert time.thread_time() - began < 1.0
    assert opened.device.allocations == before
    assert opened.library.engine is engine
    assert len(opened.engine.contexts) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("set_optimization_profile_async", "cannot switch to its profile 2"),
        ("set_input_shape", r"refuses speech of shape \[2, 300, 560\] \(speech"),
        ("infer_shapes", "cannot tell the shapes of speech"),
        ("set_tensor_address", "refuses the address of speech"),
        ("execute_async_v3", r"failed on a batch of shape \[2, 300, 560\] \(out of memory\)"),
    ],
)
def test_every_answer_of_the_library_is_looked_at(opened: Opened, call: str, message: str) -> None:
    opened.backend.infer(batch_of([5]))
    opened.library.broken.add(call)
    with pytest.raises(SvtoolError, match=message):
        opened.backend.infer(batch_of([300, 20]))
    opened.library.broken.clear()
    assert opened.backend.infer(batch_of([300, 20])).token_ids.shape == (2, 304)


def test_a_context_that_is_not_made_is_an_error(files: Path, tmp_path: Path) -> None:
    device = FakeDevice()
    library = FakeTensorRT(files / "greedy.onnx", trt_double.PROFILES, device)
    library.broken.add("create_execution_context")
    path = plan(tmp_path)
    path.write_bytes(trt_double.PLAN)
    with pytest.raises(SvtoolError, match=r"cannot make an execution context .*6144 of 8192 MiB"):
        trt.TensorRTBackend(path, manifest.read_manifest(path), flavor.RTX, library, device)


def test_a_failure_in_the_stream_is_raised(opened: Opened) -> None:
    opened.device.fail = True
    with pytest.raises(SvtoolError, match="illegal memory access"):
        opened.backend.infer(batch_of([5]))


@pytest.mark.case("B7")
@pytest.mark.parametrize(("output", "value"), [("token_logprobs", np.nan), ("tag_logits", np.inf)])
def test_numbers_that_are_not_finite_fail_their_item_alone(
    opened: Opened,
    clips: list[FloatArray],
    expected: list[str],
    tiny_assets: Assets,
    output: str,
    value: float,
) -> None:
    def spoil(results: dict[str, Any]) -> None:
        results[output][1, 2] = value

    opened.engine.spoil = spoil
    results = Recognizer(opened.backend, tiny_assets).transcribe(clips[:5], Options(batch_size_s=1e9))
    failed = [index for index, one in enumerate(results) if isinstance(one, SvtoolError)]
    assert len(failed) == 1
    assert "NaN or infinite" in str(results[failed[0]])
    for index, one in enumerate(results):
        assert index in failed or (isinstance(one, Transcript) and one.text == expected[index])
    assert opened.engine.contexts[0].enqueued == 1


@pytest.mark.case("B7")
def test_logits_that_are_not_finite_fail_their_item_alone(
    files: Path, tmp_path: Path, clips: list[FloatArray], tiny_assets: Assets
) -> None:
    whole = open_double(files / "twin.onnx", tmp_path)

    def spoil(results: dict[str, Any]) -> None:
        results["ctc_logits"][0, 7, 3] = np.nan

    whole.engine.spoil = spoil
    results = Recognizer(whole.backend, tiny_assets).transcribe(clips[:3], Options(batch_size_s=1e9))
    assert [isinstance(one, SvtoolError) for one in results].count(True) == 1


def test_wrong_lengths_are_an_error(opened: Opened) -> None:
    def spoil(results: dict[str, Any]) -> None:
        results["encoder_out_lens"][:] = results["token_ids"].shape[1]

    opened.engine.spoil = spoil
    with pytest.raises(SvtoolError, match=r"returned the lengths \[44, 44\] for \[40, 12\]"):
        opened.backend.infer(batch_of([40, 12]))


def test_the_logits_head_gives_logits(files: Path, tmp_path: Path) -> None:
    whole = open_double(files / "twin.onnx", tmp_path)
    batch = batch_of([30, 11])
    output, wanted = whole.backend.infer(batch), load_backend(files / "twin.onnx", threads=1).infer(batch)
    assert output.logits is not None
    assert wanted.logits is not None
    np.testing.assert_allclose(output.logits, wanted.logits, atol=1e-3)
    assert_same(output, wanted)


# --- CUDA graphs --------------------------------------------------------------------------------------------------


def test_recorded_graphs_give_the_same_numbers(files: Path, tmp_path: Path) -> None:
    graphs = open_double(files / "greedy.onnx", tmp_path, rtx=False, cuda_graphs=True)
    twin = load_backend(files / "twin.onnx", threads=1)
    for seed in range(5):
        for lengths in ([30, 4], [300, 9], [29, 30]):  # the first and the last share a recording
            batch = batch_of(lengths, seed=seed)
            assert_same(graphs.backend.infer(batch), twin.infer(batch))
    assert graphs.device.launches == 5 * 3 - 2 - 2
    graphs.backend.close()


def test_few_recordings_are_kept(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trt, "_RECORDINGS", 2)
    graphs = open_double(files / "greedy.onnx", tmp_path, rtx=False, cuda_graphs=True)
    for frames in (10, 20, 40):
        for _ in range(2):
            graphs.backend.infer(batch_of([frames]))
    assert len(graphs.backend._recordings) == 2
    assert graphs.device.launches == 0
    for frames in (40, 20, 10):  # the oldest is gone and starts anew
        graphs.backend.infer(batch_of([frames]))
    assert graphs.device.launches == 2


def test_rtx_records_inside_the_library(files: Path, tmp_path: Path) -> None:
    graphs = open_double(files / "greedy.onnx", tmp_path, cuda_graphs=True)
    (config,) = graphs.engine.runtime_configs
    assert config.cuda_graph_strategy is trt_double.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
    for _ in range(3):
        graphs.backend.infer(batch_of([20]))
    assert graphs.device.launches == 0


def test_a_device_that_records_nothing_is_refused(files: Path, tmp_path: Path) -> None:
    device = FakeDevice()
    device.records = False
    with pytest.raises(MissingDependency, match=r"CUDA graphs with TensorRT 9\.9\.9 needs cuda-python"):
        open_double(files / "greedy.onnx", tmp_path, rtx=False, cuda_graphs=True, device=device)


@pytest.mark.parametrize(
    ("verified", "strategies"),
    [
        ({"cuda_graphs": True, "passed": True}, 1),
        ({"cuda_graphs": True, "passed": False}, 0),
        ({"cuda_graphs": False, "passed": True}, 0),
        (None, 0),
    ],
)
def test_graphs_are_used_where_they_were_proven(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verified: Any, strategies: int
) -> None:
    device = FakeDevice()
    library = FakeTensorRT(files / "greedy.onnx", trt_double.PROFILES, device)
    for name, answer in (("is_installed", True), ("import_flavor", library)):
        monkeypatch.setattr(trt, name, lambda _, answer=answer: answer)
    monkeypatch.setattr(trt, "has_cuda_device", lambda: True)
    monkeypatch.setattr(trt, "open_device", lambda: device)
    path = tmp_path / "x.plan"
    path.write_bytes(trt_double.PLAN)
    described = {"runtime": "tensorrt_rtx", "compute_capability": "portable", "tag_ids": [1]}
    facts = {"built_with": {"tensorrt_rtx": "9.9.9"}, "verification": verified}
    manifest.write_manifest(path, described | facts)
    backend: Backend = load_backend(path)
    assert library.engine is not None
    used = [one.cuda_graph_strategy.name for one in library.engine.runtime_configs]
    assert used.count("WHOLE_GRAPH_CAPTURE") == strategies
    backend.close()


# --- the doubles enforce what they say ------------------------------------------------------------------------------


def test_the_device_double_runs_nothing_before_synchronize() -> None:
    device = FakeDevice()
    host, back = device.pinned(16).view(np.float32), device.pinned(16).view(np.float32)
    address = device.allocate(16)
    host[:] = 1
    device.upload(address, host)
    device.download(back, address)
    host[:] = 2  # a buffer used again too early
    assert np.isnan(back).all()
    device.synchronize()
    assert back.tolist() == [2, 2, 2, 2]
    with pytest.raises(Misuse, match="pinned"):
        device.upload(address, np.ones(4, np.float32))
    device.upload(address + 4, host)
    with pytest.raises(Misuse, match="freed, foreign or too small"):
        device.synchronize()


def test_the_library_double_refuses_what_the_library_refuses(opened: Opened) -> None:
    context = trt_double.IExecutionContext(opened.engine)
    assert not context.execute_async_v3(7)
    assert not context.set_input_shape("speech", (1, 85, 560))
    assert context.set_input_shape("speech", (1, 84, 560))
    assert context.infer_shapes() == ["speech_lengths", "language", "textnorm"]
    assert context.set_optimization_profile_async(1, 7)
    assert "speech" in context.infer_shapes()
    assert not context.set_optimization_profile_async(3, 7)
    with pytest.raises(Misuse, match="stream"):
        context.set_optimization_profile_async(1, 0)
