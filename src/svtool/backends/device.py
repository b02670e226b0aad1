"""The seam to device memory, one stream and pinned host memory: pycuda where it is installed, cuda-python otherwise.

Knows addresses, bytes and stream order. Knows nothing of TensorRT, plans or what the bytes mean. Both classes use
the primary context of device 0 (choose another GPU with CUDA_VISIBLE_DEVICES). Not yet run on a GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from svtool.errors import MissingDependency, SvtoolError

AnyArray = npt.NDArray[Any]
ByteArray = npt.NDArray[np.uint8]


class Memory(NamedTuple):
    """Of the device, in bytes."""

    free: int
    total: int


class Recording(Protocol):
    """Work of the stream as one CUDA graph, to be enqueued again with the same addresses."""

    def launch(self) -> None: ...

    def close(self) -> None: ...


class Device(Protocol):
    """Owned by the thread that made it. Copies and launches happen in stream order."""

    name: str  # library behind it
    stream: int  # handle, as TensorRT takes it
    records: bool  # whether `record` works

    def allocate(self, size_bytes: int) -> int:
        """Address of device memory; kept until `close`."""

    def pinned(self, size_bytes: int) -> ByteArray:
        """Page-locked host memory, u8 [size_bytes]; kept until `close`. Copies to and from it do not block."""

    def upload(self, address: int, array: AnyArray) -> None:
        """Enqueue a copy of a contiguous pinned array, which must keep its contents until `synchronize`."""

    def download(self, array: AnyArray, address: int) -> None:
        """Enqueue a copy into a contiguous pinned array, valid after `synchronize`."""

    def synchronize(self) -> None:
        """Wait for everything enqueued so far; raises what went wrong in it."""

    def memory(self) -> Memory: ...

    def record(self, work: Callable[[], None]) -> Recording:
        """Record what `work` enqueues, without running it."""

    def close(self) -> None:
        """Free every allocation and the stream."""


def open_device() -> Device:
    """pycuda where it is installed, cuda-python otherwise. Ask for a CUDA device first (`flavor.has_cuda_device`)."""
    try:
        return PyCudaDevice()
    except ImportError:
        pass  # not installed, or built without the driver's library
    try:
        return CudaPythonDevice()
    except ImportError as error:
        raise MissingDependency("running a plan", "pycuda or cuda-python", "trt") from error


class CudaPythonDevice:
    """NVIDIA's own bindings: wheels only, no build step. Every call answers (status, *values)."""

    name = "cuda-python"
    records = True

    def __init__(self) -> None:
        from cuda.bindings import runtime

        self._cuda = runtime
        self._addresses: list[int] = []
        self._pinned: list[int] = []
        self._call(runtime.cudaSetDevice(0))
        # a stream that does not wait for the default stream of other libraries in the process
        self._handle = self._call(runtime.cudaStreamCreateWithFlags(runtime.cudaStreamNonBlocking))
        self.stream = int(self._handle)

    def allocate(self, size_bytes: int) -> int:
        address = int(self._call(self._cuda.cudaMalloc(size_bytes)))
        self._addresses.append(address)
        return address

    def pinned(self, size_bytes: int) -> ByteArray:
        address = int(self._call(self._cuda.cudaMallocHost(size_bytes)))
        self._pinned.append(address)
        return np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(address))

    def upload(self, address: int, array: AnyArray) -> None:
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._call(self._cuda.cudaMemcpyAsync(address, array.ctypes.data, array.nbytes, kind, self._handle))

    def download(self, array: AnyArray, address: int) -> None:
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._call(self._cuda.cudaMemcpyAsync(array.ctypes.data, address, array.nbytes, kind, self._handle))

    def synchronize(self) -> None:
        self._call(self._cuda.cudaStreamSynchronize(self._handle))

    def memory(self) -> Memory:
        free, total = self._call(self._cuda.cudaMemGetInfo())
        return Memory(int(free), int(total))

    def record(self, work: Callable[[], None]) -> Recording:
        mode = self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call(self._cuda.cudaStreamBeginCapture(self._handle, mode))
        try:
            work()
        except BaseException:
            self._cuda.cudaStreamEndCapture(self._handle)  # the failure of `work` is the one to report
            raise
        graph = self._call(self._cuda.cudaStreamEndCapture(self._handle))
        try:
            return _CudaGraph(self, self._call(self._cuda.cudaGraphInstantiate(graph, 0)))
        finally:
            self._call(self._cuda.cudaGraphDestroy(graph))

    def close(self) -> None:
        while self._addresses:
            self._call(self._cuda.cudaFree(self._addresses.pop()))
        while self._pinned:
            self._call(self._cuda.cudaFreeHost(self._pinned.pop()))
        if self._handle is not None:
            handle, self._handle = self._handle, None
            self._call(self._cuda.cudaStreamDestroy(handle))

    def _call(self, answer: tuple[Any, ...]) -> Any:
        status, *values = answer
        if int(status) != 0:
            raise SvtoolError(f"CUDA refused: {_text(self._cuda.cudaGetErrorString(status)[1])}")
        return values[0] if len(values) == 1 else tuple(values)


class _CudaGraph:
    def __init__(self, device: CudaPythonDevice, executable: Any) -> None:
        self._device = device
        self._executable = executable

    def launch(self) -> None:
        device = self._device
        device._call(device._cuda.cudaGraphLaunch(self._executable, device._handle))

    def close(self) -> None:
        self._device._call(self._device._cuda.cudaGraphExecDestroy(self._executable))


class PyCudaDevice:
    """pycuda, which needs the CUDA headers to be installed and raises ImportError without the driver's library."""

    name = "pycuda"
    records = False  # it has no stream capture

    def __init__(self) -> None:
        import pycuda.driver as cuda

        self._cuda = cuda
        self._buffers: list[Any] = []
        self._pinned: list[Any] = []
        with self._errors():
            cuda.init()
            self._context = cuda.Device(0).retain_primary_context()
            self._context.push()
            self._stream = cuda.Stream()
        self.stream = int(self._stream.handle)

    def allocate(self, size_bytes: int) -> int:
        with self._errors():
            self._buffers.append(self._cuda.mem_alloc(size_bytes))
        return int(self._buffers[-1])

    def pinned(self, size_bytes: int) -> ByteArray:
        with self._errors():
            array: ByteArray = self._cuda.pagelocked_empty(size_bytes, np.uint8)
        self._pinned.append(array.base)
        return array

    def upload(self, address: int, array: AnyArray) -> None:
        with self._errors():
            self._cuda.memcpy_htod_async(address, array, self._stream)

    def download(self, array: AnyArray, address: int) -> None:
        with self._errors():
            self._cuda.memcpy_dtoh_async(array, address, self._stream)

    def synchronize(self) -> None:
        with self._errors():
            self._stream.synchronize()

    def memory(self) -> Memory:
        with self._errors():
            free, total = self._cuda.mem_get_info()
        return Memory(int(free), int(total))

    def record(self, work: Callable[[], None]) -> Recording:
        raise MissingDependency("CUDA graphs with TensorRT", "cuda-python (pycuda records none)", "trt")

    def close(self) -> None:
        with self._errors():
            while self._buffers:
                self._buffers.pop().free()
            while self._pinned:
                self._pinned.pop().free()
            if self._stream is not None:
                self._stream = None  # gone before its context is no longer current
                self._context.pop()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._cuda.Error as error:
            raise SvtoolError(f"CUDA refused: {error}") from error


def _text(message: Any) -> str:
    return message.decode(errors="replace") if isinstance(message, bytes) else str(message)
