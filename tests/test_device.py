"""The device seam: cuda-python's class on host memory that stands in for a GPU, and every name both classes call."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from svtool import flavor
from svtool.backends import device
from svtool.backends.device import CudaPythonDevice
from svtool.errors import SvtoolError

# parameters as cuda-python states them
SIGNATURES = {
    "cudaSetDevice": "(int device)",
    "cudaStreamCreateWithFlags": "(unsigned int flags)",
    "cudaStreamSynchronize": "(stream)",
    "cudaStreamDestroy": "(stream)",
    "cudaMalloc": "(size_t size)",
    "cudaFree": "(devPtr)",
    "cudaMallocHost": "(size_t size)",
    "cudaFreeHost": "(ptr)",
    "cudaMemcpyAsync": "(dst, src, size_t count, kind: cudaMemcpyKind, stream)",
    "cudaMemGetInfo": "()",
    "cudaStreamBeginCapture": "(stream, mode: cudaStreamCaptureMode)",
    "cudaStreamEndCapture": "(stream)",
    "cudaGraphInstantiate": "(graph, unsigned long long flags)",
    "cudaGraphLaunch": "(graphExec, stream)",
    "cudaGraphDestroy": "(graph)",
    "cudaGraphExecDestroy": "(graphExec)",
    "cudaGetErrorString": "(error: cudaError_t)",
}
# read in pycuda's own source (2026.1): it cannot be installed without the CUDA headers
PYCUDA = {
    "module": ("init", "Device", "Stream", "mem_alloc", "pagelocked_empty", "mem_get_info", "Error"),
    "copies": ("memcpy_htod_async", "memcpy_dtoh_async"),
    "objects": ("retain_primary_context", "push", "pop", "handle", "synchronize", "free"),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_cuda_python_has_the_functions_with_these_parameters(name: str) -> None:
    runtime = pytest.importorskip("cuda.bindings.runtime")
    first = (getattr(runtime, name).__doc__ or "").strip().splitlines()[0]
    assert first == name + SIGNATURES[name]


def test_pycuda_is_called_by_known_names_only() -> None:
    import inspect
    import re

    source = inspect.getsource(device.PyCudaDevice)
    known = {name for names in PYCUDA.values() for name in names}
    used = set(re.findall(r"\b(?:cuda|_cuda|_context|_stream|pop\(\))\.(\w+)", source))
    assert used - {"driver"} <= known
    assert len(used) >= 10


class Gpu:
    """CUDA's runtime calls on host memory: copies wait for the stream, statuses are cuda-python's own."""

    def __init__(self, runtime: Any) -> None:
        self.ok, self.bad = runtime.cudaError_t.cudaSuccess, runtime.cudaError_t.cudaErrorMemoryAllocation
        self.blocks: dict[int, Any] = {}
        self.queue: list[tuple[int, int, int]] = []
        self.captured: list[tuple[int, int, int]] | None = None
        self.live: set[str] = set()
        self.limit = 1 << 20

    def cudaSetDevice(self, device: int) -> Any:  # noqa: N802
        return (self.ok if device == 0 else self.bad,)

    def cudaStreamCreateWithFlags(self, flags: int) -> Any:  # noqa: N802
        assert flags == 1
        self.live.add("stream")
        return self.ok, 77

    def cudaStreamDestroy(self, stream: int) -> Any:  # noqa: N802
        self.live.remove("stream")
        return (self.ok,)

    def cudaMalloc(self, size: int) -> Any:  # noqa: N802
        if size > self.limit:
            return self.bad, None
        block = (ctypes.c_uint8 * size)()
        self.blocks[ctypes.addressof(block)] = block
        return self.ok, ctypes.addressof(block)

    cudaMallocHost = cudaMalloc  # noqa: N815

    def cudaFree(self, pointer: int) -> Any:  # noqa: N802
        del self.blocks[pointer]
        return (self.ok,)

    cudaFreeHost = cudaFree  # noqa: N815

    def cudaMemcpyAsync(self, dst: int, src: int, count: int, kind: Any, stream: int) -> Any:  # noqa: N802
        assert stream == 77
        (self.queue if self.captured is None else self.captured).append((dst, src, count))
        return (self.ok,)

    def cudaStreamSynchronize(self, stream: int) -> Any:  # noqa: N802
        for dst, src, count in self.queue:
            ctypes.memmove(dst, src, count)
        self.queue.clear()
        return (self.ok,)

    def cudaMemGetInfo(self) -> Any:  # noqa: N802
        return self.ok, 5, 9

    def cudaStreamBeginCapture(self, stream: int, mode: Any) -> Any:  # noqa: N802
        self.captured = []
        return (self.ok,)

    def cudaStreamEndCapture(self, stream: int) -> Any:  # noqa: N802
        captured, self.captured = self.captured, None
        self.live.add("graph")
        return self.ok, captured

    def cudaGraphInstantiate(self, graph: Any, flags: int) -> Any:  # noqa: N802
        self.live.add("executable")
        return self.ok, list(graph)

    def cudaGraphDestroy(self, graph: Any) -> Any:  # noqa: N802
        self.live.remove("graph")
        return (self.ok,)

    def cudaGraphLaunch(self, executable: Any, stream: int) -> Any:  # noqa: N802
        self.queue += executable
        return (self.ok,)

    def cudaGraphExecDestroy(self, executable: Any) -> Any:  # noqa: N802
        self.live.remove("executable")
        return (self.ok,)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    runtime = pytest.importorskip("cuda.bindings.runtime")
    made = Gpu(runtime)
    for name in SIGNATURES:
        if name != "cudaGetErrorString":
            monkeypatch.setattr(runtime, name, getattr(made, name))
    return made


def test_copies_go_to_the_device_and_back_in_stream_order(gpu: Gpu) -> None:
    made = CudaPythonDevice()
    there, back = made.pinned(12), made.pinned(12)
    numbers = there.view(np.float32)
    numbers[:] = [1, 2, 3]
    back[:] = 0
    address = made.allocate(12)
    made.upload(address, numbers)
    made.download(back, address)
    assert back.view(np.float32).tolist() == [0, 0, 0]
    made.synchronize()
    assert back.view(np.float32).tolist() == [1, 2, 3]
    assert made.memory() == (5, 9)
    assert made.stream == 77
    made.close()
    assert (gpu.blocks, gpu.live) == ({}, set())
    made.close()  # once more does no harm


def test_a_recording_runs_again_with_new_contents(gpu: Gpu) -> None:
    made = CudaPythonDevice()
    there, back, address = made.pinned(4), made.pinned(4), made.allocate(4)

    def work() -> None:
        made.upload(address, there)
        made.download(back, address)

    recording = made.record(work)
    for value in (3, 9):
        there[:] = value
        recording.launch()
        made.synchronize()
        assert back.tolist() == [value] * 4
    assert gpu.live == {"stream", "executable"}
    recording.close()
    made.close()
    assert gpu.live == set()


def test_work_that_fails_ends_the_capture(gpu: Gpu) -> None:
    made = CudaPythonDevice()

    def work() -> None:
        raise SvtoolError("no")

    with pytest.raises(SvtoolError, match="no"):
        made.record(work)
    assert gpu.captured is None


def test_a_refusal_is_named(gpu: Gpu) -> None:
    made = CudaPythonDevice()
    with pytest.raises(SvtoolError, match="CUDA refused: out of memory"):
        made.allocate(1 << 30)


def test_without_a_driver_every_question_has_an_answer() -> None:
    if flavor.has_cuda_device():
        pytest.skip("this machine has a GPU")
    assert (flavor.cuda_device_count(), flavor.compute_capability(), flavor.gpu_name()) == (0, None, None)
    pytest.importorskip("cuda.bindings.runtime")
    with pytest.raises(SvtoolError, match="CUDA refused: "):
        CudaPythonDevice()


def test_a_device_that_nobody_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in ("pycuda", "pycuda.driver", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SvtoolError, match=r"pycuda or cuda-python.*\.\[trt\]"):
        device.open_device()


def test_nothing_of_cuda_is_loaded_by_the_import() -> None:
    import subprocess
    import sys

    code = "import sys, svtool.backends.trt; sys.exit(any(n.split('.')[0] in ('cuda', 'pycuda') for n in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)
