"""What of the TensorRT backend can be checked without a GPU: refusals, and every name it uses against the library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from svtool import flavor, manifest
from svtool.backends import load_backend, trt
from svtool.errors import ArtifactError, MissingDependency

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
    "ILayer": ("type", "get_output"),
    "IBuilderConfig": ("set_memory_pool_limit", "add_optimization_profile", "progress_monitor"),
    "IOptimizationProfile": ("set_shape", "__bool__"),
    "IHostMemory": ("nbytes",),
    "MemoryPoolType": ("WORKSPACE",),
    "OnnxParser": ("parse_from_file", "num_errors", "get_error"),
    "Logger": ("ERROR",),
    "Runtime": ("deserialize_cuda_engine",),
    "TensorIOMode": ("INPUT",),
    "ICudaEngine": (
        "create_execution_context",
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
    "ICudaEngine.get_tensor_profile_shape": ("name: str", "profile_index:"),
    "IExecutionContext.set_input_shape": ("name: str", "-> bool"),
    "IExecutionContext.infer_shapes": ("-> list[str]",),
    "IExecutionContext.set_tensor_address": ("name: str", "memory:", "-> bool"),
    "IExecutionContext.execute_async_v3": ("stream_handle:", "-> bool"),
    "IExecutionContext.set_optimization_profile_async": ("profile_index:", "stream_handle:", "-> bool"),
    "IBuilderConfig.add_optimization_profile": ("-> int",),
    "OnnxParser.parse_from_file": ("model: str", "-> bool"),
    "Runtime.deserialize_cuda_engine": ("serialized_engine:",),
}


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
    with pytest.raises(ArtifactError, match=r"needs an NVIDIA GPU.*svtool transcribe -m .*int8\.onnx"):
        load_backend(plan(tmp_path))


def test_a_plan_without_its_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "int8.plan").write_bytes(b"plan")
    with pytest.raises(ArtifactError, match="has no manifest"):
        load_backend(tmp_path / "int8.plan")


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
    here = flavor.version(flavor.import_flavor(flavor.RTX))
    changed = plan(tmp_path, built_with={"tensorrt_rtx": here})
    changed.write_bytes(b"")
    with pytest.raises(ArtifactError, match="not the file its manifest describes"):
        trt.open_plan(changed)
    if not flavor.is_installed(flavor.CLASSIC):
        with pytest.raises(MissingDependency, match=r"\.\[trt\]"):
            trt.open_plan(plan(tmp_path, runtime="tensorrt", compute_capability="8.9"))
    monkeypatch.setattr(trt, "is_installed", lambda _: True)
    with pytest.raises(ArtifactError, match=r"compute capability 8\.0, this GPU has 8\.9"):
        trt.open_plan(plan(tmp_path, runtime="tensorrt", compute_capability="8.0"))
