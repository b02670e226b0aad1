"""A CUDA device and a TensorRT without a GPU: numpy arrays in stream order, and the plan's ONNX twin as the engine.

They enforce what the real ones leave undefined: work runs only at `synchronize`, so a missing one, a buffer used
again too early or freed too early shows as wrong numbers or an error; only pinned memory is copied from; shapes stay
inside the selected profile and are forgotten when it changes; one thread. Methods and enum members exist in the real
library too (a test compares), and what has a boolean there has the same one here.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from svtool.backends import load_backend
from svtool.backends.device import AnyArray, ByteArray, Memory
from svtool.backends.onnxrt import open_session
from svtool.backends.trt import TensorRTBackend
from svtool.errors import SvtoolError
from svtool.flavor import CLASSIC, RTX

PLAN = b"the bytes of a plan"
# (batch, frames) of min, opt, max: short in large batches, long in small ones; the last has a minimum of its own
PROFILES = (
    ((1, 1), (32, 84), (32, 84)),
    ((1, 1), (8, 250), (8, 250)),
    ((2, 8), (4, 500), (4, 500)),
)
FREE, TOTAL = 6 << 30, 8 << 30


class Misuse(SvtoolError):
    """What a real GPU would answer with a crash, an error long after, or wrong numbers."""


class FakeDevice:
    name = "double"
    records = True

    def __init__(self, *, free: int = FREE, fail: bool = False) -> None:
        self.stream = 7
        self.allocations = 0
        self.launches = 0
        self.fail = fail  # the stream breaks at the next synchronize
        self._free = free
        self._memory: dict[int, ByteArray] = {}
        self._host: list[ByteArray] = []
        self._next = 4096
        self._queue: list[Callable[[], None]] = []
        self._recording: list[Callable[[], None]] | None = None
        self._thread = threading.get_ident()
        self.closed = False

    def allocate(self, size_bytes: int) -> int:
        self._check()
        if size_bytes < 1:
            raise Misuse(f"an allocation of {size_bytes} bytes")
        self.allocations += 1
        address, self._next = self._next, self._next + size_bytes + 4096
        self._memory[address] = np.full(size_bytes, 0xFF, np.uint8)  # NaN as floats, -1 as integers
        return address

    def pinned(self, size_bytes: int) -> ByteArray:
        self._check()
        self.allocations += 1
        self._host.append(np.full(size_bytes, 0xFF, np.uint8))
        return self._host[-1]

    def upload(self, address: int, array: AnyArray) -> None:
        self._check_pinned(array)
        self.enqueue(lambda: self.write(address, array))

    def download(self, array: AnyArray, address: int) -> None:
        self._check_pinned(array)

        def copy() -> None:
            array.reshape(-1).view(np.uint8)[:] = self.read(address, array.nbytes)

        self.enqueue(copy)

    def synchronize(self) -> None:
        self._check()
        if self._recording is not None:
            raise Misuse("synchronize while recording")
        queue, self._queue = self._queue, []
        for work in queue:
            work()
        if self.fail:
            raise SvtoolError("CUDA refused: an illegal memory access was encountered")

    def memory(self) -> Memory:
        self._check()
        return Memory(self._free, TOTAL)

    def record(self, work: Callable[[], None]) -> FakeRecording:
        self._check()
        if self._queue:
            raise Misuse("recording while work is pending")
        self._recording = []
        try:
            work()
            return FakeRecording(self, self._recording)
        finally:
            self._recording = None

    def close(self) -> None:
        self._check()
        for block in (*self._memory.values(), *self._host):
            block[:] = 0xFF
        self._memory.clear()
        self._host.clear()
        self.closed = True

    # what the engine uses

    def enqueue(self, work: Callable[[], None]) -> None:
        self._check()
        (self._queue if self._recording is None else self._recording).append(work)

    def read(self, address: int, size: int) -> ByteArray:
        block = self._memory.get(address)
        if block is None or size > len(block):
            raise Misuse(f"{size} bytes read at {address}, which is freed, foreign or too small")
        return block[:size]

    def write(self, address: int, array: AnyArray) -> None:
        self.read(address, array.nbytes)[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def _check(self) -> None:
        if threading.get_ident() != self._thread:
            raise Misuse("the device was used from another thread")
        if self.closed:
            raise Misuse("the device was used after close")

    def _check_pinned(self, array: AnyArray) -> None:
        if not array.flags.c_contiguous or not any(np.shares_memory(array, block) for block in self._host):
            raise Misuse("a copy needs contiguous pinned memory")


class FakeRecording:
    def __init__(self, device: FakeDevice, work: list[Callable[[], None]]) -> None:
        self._device = device
        self._work: list[Callable[[], None]] | None = work

    def launch(self) -> None:
        if self._work is None:
            raise Misuse("a recording was launched after close")
        self._device.launches += 1
        for one in self._work:
            self._device.enqueue(one)

    def close(self) -> None:
        self._work = None


class TensorIOMode(enum.Enum):
    INPUT = 1
    OUTPUT = 2


class EngineValidity(enum.IntEnum):
    VALID = 0
    SUBOPTIMAL = 1
    INVALID = 2


class EngineInvalidityDiagnostics(enum.IntFlag):
    VERSION_MISMATCH = 1
    UNSUPPORTED_CC = 2


class CudaGraphStrategy(enum.Enum):
    DISABLED = 0
    WHOLE_GRAPH_CAPTURE = 1


class ILogger:
    INTERNAL_ERROR, ERROR, WARNING = 0, 1, 2

    def __init__(self) -> None: ...

    def log(self, severity: Any, msg: str) -> None:
        raise NotImplementedError


class IRuntimeConfig:
    def __init__(self) -> None:
        self.cuda_graph_strategy = CudaGraphStrategy.DISABLED


class IExecutionContext:
    """`broken` names the calls that answer False (or a name, or nothing), to see each one noticed."""

    def __init__(self, engine: ICudaEngine) -> None:
        self._engine = engine
        self._profile = 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._thread = threading.get_ident()
        self.enqueued = 0

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        self._check("set_optimization_profile_async")
        if stream_handle != self._engine.device.stream:
            raise Misuse("the profile is switched on a stream that the engine does not run on")
        if self._broken("set_optimization_profile_async") or profile_index >= len(self._engine.profiles):
            return False
        self._profile = profile_index
        self._shapes.clear()
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self._check("set_input_shape")
        least, _, most = self._engine.get_tensor_profile_shape(name, self._profile)
        inside = len(shape) == len(most) and all(
            a <= b <= c for a, b, c in zip(least, shape, most, strict=True)
        )
        if self._broken("set_input_shape") or not inside:
            self._say(f"{name} {list(shape)} is not inside profile {self._profile}")
            return False
        self._shapes[name] = tuple(shape)
        return True

    def infer_shapes(self) -> list[str]:
        self._check("infer_shapes")
        missing = [name for name in self._engine.inputs if name not in self._shapes]
        return ["speech"] if self._broken("infer_shapes") else missing

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        self._check("get_tensor_shape")
        if name in self._engine.inputs:
            return self._shapes.get(name, self._engine.get_tensor_shape(name))
        if len({"speech", "language"} & set(self._shapes)) < 2:
            return self._engine.get_tensor_shape(name)
        rows, time, _ = self._shapes["speech"]
        shape = list(self._engine.get_tensor_shape(name))
        shape[0] = rows
        if len(shape) > 1 and shape[1] < 0:
            shape[1] = time + 4
        return tuple(shape)

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self._check("set_tensor_address")
        self._addresses[name] = memory
        return not self._broken("set_tensor_address")

    def execute_async_v3(self, stream_handle: int) -> bool:
        self._check("execute_async_v3")
        engine, names = self._engine, [*self._engine.inputs, *self._engine.outputs]
        if self._broken("execute_async_v3"):
            self._say("out of memory")
            return False
        if self.infer_shapes() or any(name not in self._addresses for name in names):
            return False
        if stream_handle != engine.device.stream:
            raise Misuse("enqueued on a stream that is not the device's")
        self.enqueued += 1
        shapes, addresses = dict(self._shapes), dict(self._addresses)
        engine.device.enqueue(lambda: engine.compute(shapes, addresses))
        return True

    def _broken(self, call: str) -> bool:
        return call in self._engine.broken

    def _say(self, message: str) -> None:
        self._engine.logger.log(ILogger.ERROR, message)

    def _check(self, call: str) -> None:
        if threading.get_ident() != self._thread:
            raise Misuse(f"{call} on a context of another thread")


class ICudaEngine:
    device_memory_size_v2 = 64 << 20

    def __init__(
        self,
        path: Path,
        profiles: Sequence[Sequence[tuple[int, int]]],
        device: FakeDevice,
        logger: ILogger,
        broken: set[str],
        spoil: Callable[[dict[str, AnyArray]], None] | None,
    ) -> None:
        self._session = open_session(path, threads=1)
        self.profiles = profiles  # (batch, frames) of min, opt, max
        self.device = device
        self.logger = logger
        self.broken = broken
        self.spoil = spoil
        self.contexts: list[IExecutionContext] = []
        self.runtime_configs: list[IRuntimeConfig] = []
        self.inputs = {one.name: one for one in self._session.get_inputs()}
        self.outputs = {one.name: one for one in self._session.get_outputs()}

    @property
    def num_io_tensors(self) -> int:
        return len(self.inputs) + len(self.outputs)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self.profiles)

    def get_tensor_name(self, index: int) -> str:
        return [*self.inputs, *self.outputs][index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self.inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> str:
        return str((self.inputs | self.outputs)[name].type)

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        shape = (self.inputs | self.outputs)[name].shape
        return tuple(size if isinstance(size, int) else -1 for size in shape)

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[tuple[int, ...]]:
        if name not in self.inputs:
            raise Misuse(f"{name} is no input: it has no profile")
        rank = len(self.get_tensor_shape(name))
        return [(rows, time, 560) if rank == 3 else (rows,) for rows, time in self.profiles[profile_index]]

    def create_runtime_config(self) -> IRuntimeConfig:
        self.runtime_configs.append(IRuntimeConfig())
        return self.runtime_configs[-1]

    def create_execution_context(
        self, runtime_config: IRuntimeConfig | None = None
    ) -> IExecutionContext | None:
        if "create_execution_context" in self.broken:
            return None
        self.contexts.append(IExecutionContext(self))
        return self.contexts[-1]

    def compute(self, shapes: dict[str, tuple[int, ...]], addresses: dict[str, int]) -> None:
        """Runs when the stream gets there, on what the device memory holds then."""
        feeds = {}
        for name, shape in shapes.items():
            kind = np.dtype(nptype(self.get_tensor_dtype(name)))
            size = int(np.prod(shape)) * kind.itemsize
            feeds[name] = self.device.read(addresses[name], size).view(kind).reshape(shape)
        results = dict(zip(self.outputs, self._session.run(None, feeds), strict=True))
        if self.spoil is not None:
            self.spoil(results)
        for name, array in results.items():
            self.device.write(addresses[name], array)


class ClassicEngine(ICudaEngine):
    """TensorRT 10: no strategy of its own for CUDA graphs."""

    create_runtime_config: ClassVar[Any] = property()


class Runtime:
    def __init__(self, logger: ILogger) -> None:
        self._logger = logger
        self._library: FakeTensorRT

    def get_engine_validity(self, buffer: bytes) -> tuple[EngineValidity, int]:
        library = self._library
        return (
            (EngineValidity.INVALID, library.diagnostics)
            if library.diagnostics
            else (EngineValidity.VALID, 0)
        )

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None:
        library = self._library
        if serialized_engine != PLAN:
            self._logger.log(ILogger.ERROR, "magicTag does not match")
            return None
        kind = ICudaEngine if library.rtx else ClassicEngine
        library.engine = kind(
            library.path, library.profiles, library.device, self._logger, library.broken, library.spoil
        )
        return library.engine


class ClassicRuntime(Runtime):
    get_engine_validity: ClassVar[Any] = property()


class FakeTensorRT:
    """The module. `path`: the ONNX file it runs; `profiles`: (batch, frames) of min, opt, max of each."""

    __version__ = "9.9.9"
    TensorIOMode = TensorIOMode
    EngineValidity = EngineValidity
    EngineInvalidityDiagnostics = EngineInvalidityDiagnostics
    CudaGraphStrategy = CudaGraphStrategy
    ILogger = ILogger

    def __init__(
        self,
        path: Path,
        profiles: Sequence[Sequence[tuple[int, int]]],
        device: FakeDevice,
        *,
        rtx: bool = True,
    ) -> None:
        self.path = path
        self.profiles = profiles
        self.device = device
        self.rtx = rtx
        self.broken: set[str] = set()
        self.spoil: Callable[[dict[str, AnyArray]], None] | None = None
        self.diagnostics = 0
        self.engine: ICudaEngine | None = None

    def Runtime(self, logger: ILogger) -> Runtime:  # noqa: N802 - the library's name
        made = Runtime(logger) if self.rtx else ClassicRuntime(logger)
        made._library = self
        return made

    @staticmethod
    def nptype(trt_type: str) -> Any:
        return nptype(trt_type)


def nptype(trt_type: str) -> Any:
    return {"tensor(float)": np.float32, "tensor(int32)": np.int32}[trt_type]


@dataclass
class Opened:
    backend: TensorRTBackend
    library: FakeTensorRT
    device: FakeDevice

    @property
    def engine(self) -> ICudaEngine:
        assert self.library.engine is not None
        return self.library.engine


def open_double(
    graph: Path,
    folder: Path,
    profiles: Sequence[Sequence[tuple[int, int]]] = PROFILES,
    *,
    device: FakeDevice | None = None,
    rtx: bool = True,
    **options: Any,
) -> Opened:
    """A backend of this thread over both doubles; `graph` has the greedy or the logits head."""
    device = device or FakeDevice()
    library = FakeTensorRT(graph, profiles, device, rtx=rtx)
    plan = folder / "double.plan"
    plan.write_bytes(PLAN)
    tags = load_backend(graph, threads=1).tag_ids
    described = {"tag_ids": list(tags), "precision": "fp16", "compute_capability": "portable"}
    backend = TensorRTBackend(plan, described, RTX if rtx else CLASSIC, library, device, **options)
    return Opened(backend, library, device)
