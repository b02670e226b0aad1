"""Runs a plan with TensorRT or TensorRT-RTX. First form: not yet run on a GPU.

Compares the manifest with this machine and asks the CUDA driver for a device before any runtime object is made:
without a driver the libraries return None or crash. Device memory and streams stand behind the `Device` seam.
Knows nothing of audio or text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from svtool import manifest
from svtool.backends import Batch, Limits, Output, greedy_head
from svtool.errors import ArtifactError, MissingDependency
from svtool.flavor import (
    CLASSIC,
    FLAVORS,
    Flavor,
    compute_capability,
    has_cuda_device,
    import_flavor,
    is_installed,
    version,
)

AnyArray = npt.NDArray[Any]

_FEATURES = 560


class Device(Protocol):
    """Device memory and one stream of the CUDA device in use."""

    stream: int

    def allocate(self, size_bytes: int) -> int: ...

    def upload(self, address: int, array: AnyArray) -> None:
        """Copy a contiguous array to the device, in stream order."""

    def download(self, array: AnyArray, address: int) -> None:
        """Copy into a contiguous array, in stream order; valid after `synchronize`."""

    def synchronize(self) -> None: ...

    def close(self) -> None:
        """Free every allocation and the stream."""


def open_plan(path: Path) -> TensorRTBackend:
    """Open a plan. Raises ArtifactError that names the plan, the mismatch and the command to use instead."""
    described = manifest.read_manifest(path)
    flavor = _flavor_of(path, described)
    _check_machine(path, described, flavor)
    trt = import_flavor(flavor)
    _check_version(path, described, flavor, version(trt))
    manifest.check_digest(path, described["sha256"], described)
    return TensorRTBackend(path, described, flavor, trt, open_device())


def open_device() -> Device:
    """pycuda where it is installed, cuda-python otherwise."""
    try:
        return PyCudaDevice()
    except ImportError:
        pass
    try:
        return CudaPythonDevice()
    except ImportError as error:
        raise MissingDependency("running a plan", "pycuda or cuda-python", "trt") from error


class TensorRTBackend:
    """One engine, one context, one stream; buffers are made once, for the largest profile."""

    def __init__(
        self, path: Path, described: Mapping[str, Any], flavor: Flavor, trt: Any, device: Device
    ) -> None:
        self.runtime = flavor.runtime
        self.provider = f"{flavor.title} {version(trt)}"
        self.tag_ids = tuple(int(tag) for tag in described["tag_ids"])
        self._path = path
        self._trt = trt
        self._device = device
        self._log = trt.Logger(trt.Logger.ERROR)
        self._owner = trt.Runtime(self._log)
        self._engine = self._owner.deserialize_cuda_engine(path.read_bytes())
        if self._engine is None:
            raise ArtifactError(f"{self.provider} does not accept {path}: {_rebuild(path, described)}")
        self._context = self._engine.create_execution_context()
        if self._context is None:
            raise ArtifactError(
                f"{self.provider} cannot make an execution context for {path}: too little GPU memory?"
            )
        self._names = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        inputs = trt.TensorIOMode.INPUT
        self._inputs = [name for name in self._names if self._engine.get_tensor_mode(name) == inputs]
        self._profiles = [self._largest(index) for index in range(self._engine.num_optimization_profiles)]
        self._profile = 0
        self.limits = Limits(
            max(batch for batch, _ in self._profiles), max(frames for _, frames in self._profiles)
        )
        self._buffers = self._allocate()

    def infer(self, batch: Batch) -> Output:
        """Run one batch. Raises ArtifactError when no profile takes its shape, before anything is enqueued."""
        self._select(*batch.feats.shape[:2])
        arrays = {
            "speech": np.ascontiguousarray(batch.feats),
            "speech_lengths": np.ascontiguousarray(batch.feat_lens),
            "language": np.ascontiguousarray(batch.language),
            "textnorm": np.ascontiguousarray(batch.textnorm),
        }
        for name in self._inputs:
            if not self._context.set_input_shape(name, tuple(arrays[name].shape)):
                raise ArtifactError(f"{self._path} refuses {name} of shape {list(arrays[name].shape)}")
            self._device.upload(self._buffers[name], arrays[name])
        missing = self._context.infer_shapes()
        if missing:
            raise ArtifactError(f"{self._path}: the shapes of {', '.join(missing)} are not known")
        for name in self._names:
            if not self._context.set_tensor_address(name, self._buffers[name]):
                raise ArtifactError(f"{self._path} refuses the address of {name}")
        if not self._context.execute_async_v3(self._device.stream):
            raise ArtifactError(f"{self._path} failed on a batch of shape {list(batch.feats.shape)}")
        return self._collect()

    def close(self) -> None:
        # the order in which TensorRT wants them gone
        self._context = self._engine = self._owner = None
        self._device.close()

    def _collect(self) -> Output:
        results = {}
        for name in self._names:
            if name in self._inputs:
                continue
            kind = self._trt.nptype(self._engine.get_tensor_dtype(name))
            results[name] = np.empty(tuple(self._context.get_tensor_shape(name)), dtype=kind)
            self._device.download(results[name], self._buffers[name])
        self._device.synchronize()
        if "ctc_logits" in results:
            output = greedy_head(results["ctc_logits"], results["encoder_out_lens"], self.tag_ids)
        else:
            output = Output(
                results["token_ids"],
                results["token_logprobs"],
                results["tag_logits"],
                results["encoder_out_lens"],
            )
        self._check_finite(output)
        return output

    def _check_finite(self, output: Output) -> None:
        for item, length in enumerate(output.logit_lens):
            if not np.isfinite(output.token_logprobs[item, :length]).all():
                raise ArtifactError(
                    f"{self._path} returned numbers that are not finite for item {item} of a batch"
                )

    def _largest(self, index: int) -> tuple[int, int]:
        _, _, most = self._engine.get_tensor_profile_shape("speech", index)
        return int(most[0]), int(most[1])

    def _select(self, batch: int, frames: int) -> None:
        fitting = [
            (most[0] * most[1], index)
            for index, most in enumerate(self._profiles)
            if batch <= most[0] and 1 <= frames <= most[1]
        ]
        if not fitting:
            known = ", ".join(f"{one} x {two}" for one, two in self._profiles)
            raise ArtifactError(
                f"{self._path} takes batches of up to {known} frames, not {batch} x {frames}: split it"
            )
        _, chosen = min(fitting)
        if chosen != self._profile:
            if not self._context.set_optimization_profile_async(chosen, self._device.stream):
                raise ArtifactError(f"{self._path} cannot switch to its profile {chosen}")
            self._profile = chosen

    def _allocate(self) -> dict[str, int]:
        rows = max(batch * (frames + 4) for batch, frames in self._profiles)
        sizes = {}
        for name in self._names:
            shape = [int(size) for size in self._engine.get_tensor_shape(name)]
            item = np.dtype(self._trt.nptype(self._engine.get_tensor_dtype(name))).itemsize
            sizes[name] = rows * item * _fixed_size(shape)
        return {name: self._device.allocate(size) for name, size in sizes.items()}


class CudaPythonDevice:
    """NVIDIA's own bindings: wheels only, no build step."""

    def __init__(self) -> None:
        from cuda.bindings import runtime

        self._cuda = runtime
        self._addresses: list[int] = []
        self._handle = self._call(runtime.cudaStreamCreate())
        self.stream = int(self._handle)

    def allocate(self, size_bytes: int) -> int:
        address = int(self._call(self._cuda.cudaMalloc(size_bytes)))
        self._addresses.append(address)
        return address

    def upload(self, address: int, array: AnyArray) -> None:
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._call(self._cuda.cudaMemcpyAsync(address, array.ctypes.data, array.nbytes, kind, self._handle))

    def download(self, array: AnyArray, address: int) -> None:
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._call(self._cuda.cudaMemcpyAsync(array.ctypes.data, address, array.nbytes, kind, self._handle))

    def synchronize(self) -> None:
        self._call(self._cuda.cudaStreamSynchronize(self._handle))

    def close(self) -> None:
        while self._addresses:
            self._call(self._cuda.cudaFree(self._addresses.pop()))
        self._call(self._cuda.cudaStreamDestroy(self._handle))

    def _call(self, answer: tuple[Any, ...]) -> Any:
        status, *values = answer
        if int(status) != 0:
            raise ArtifactError(f"CUDA refused: {self._cuda.cudaGetErrorString(status)[1]!r}")
        return values[0] if values else None


class PyCudaDevice:
    """pycuda, on the primary context of device 0."""

    def __init__(self) -> None:
        import pycuda.driver as cuda

        self._cuda = cuda
        cuda.init()
        self._context = cuda.Device(0).retain_primary_context()
        self._context.push()
        self._stream = cuda.Stream()
        self.stream = int(self._stream.handle)
        self._buffers: list[Any] = []

    def allocate(self, size_bytes: int) -> int:
        self._buffers.append(self._cuda.mem_alloc(size_bytes))
        return int(self._buffers[-1])

    def upload(self, address: int, array: AnyArray) -> None:
        self._cuda.memcpy_htod_async(address, array, self._stream)

    def download(self, array: AnyArray, address: int) -> None:
        self._cuda.memcpy_dtoh_async(array, address, self._stream)

    def synchronize(self) -> None:
        self._stream.synchronize()

    def close(self) -> None:
        while self._buffers:
            self._buffers.pop().free()
        self._context.pop()


def _flavor_of(path: Path, described: Mapping[str, Any]) -> Flavor:
    runtime = described.get("runtime")
    for flavor in FLAVORS.values():
        if flavor.runtime == runtime:
            return flavor
    raise ArtifactError(
        f"{path} says it runs in {runtime!r}, which is no TensorRT: {_rebuild(path, described)}"
    )


def _check_machine(path: Path, described: Mapping[str, Any], flavor: Flavor) -> None:
    if not has_cuda_device():
        twin = path.with_name(str(described.get("twin", path.with_suffix(".onnx").name)))
        raise ArtifactError(
            f"{path} needs an NVIDIA GPU, and no CUDA device answers here: its ONNX twin gives the same text on the "
            f"CPU, with  svtool transcribe -m {twin}  or  svtool serve {twin}"
        )
    if not is_installed(flavor):
        raise MissingDependency(f"the plan {path}", flavor.title, flavor.extra)
    wanted, here = described.get("compute_capability"), compute_capability()
    if flavor is CLASSIC and wanted != here:
        raise ArtifactError(
            f"{path} was built for compute capability {wanted}, this GPU has {here}: {_rebuild(path, described)}"
        )


def _check_version(path: Path, described: Mapping[str, Any], flavor: Flavor, here: str) -> None:
    wanted = described.get("built_with", {}).get(flavor.runtime)
    if wanted != here:
        raise ArtifactError(
            f"{path} was built with {flavor.title} {wanted}, here is {here}: {_rebuild(path, described)}"
        )


def _rebuild(path: Path, described: Mapping[str, Any]) -> str:
    return f"build it here with  {manifest.rebuild_command(path, described)}"


def _fixed_size(shape: Sequence[int]) -> int:
    """Numbers per row of a tensor whose first dims are batch and perhaps time."""
    return math.prod(size for size in shape if size > 0)
