"""Runs a plan with TensorRT or TensorRT-RTX: one context, one stream, buffers made once. Not yet run on a GPU.

Compares the manifest with this machine and asks the CUDA driver for a device before any runtime object is made:
without a driver the libraries return None or crash. Device memory and streams stand behind `device.Device`; what
differs between the libraries is found by hasattr. Knows nothing of audio or text.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from svtool import manifest
from svtool.assets import QUERIES
from svtool.backends import Batch, Limits, Output, greedy_head
from svtool.backends.device import ByteArray, Device, Recording, open_device
from svtool.backends.onnxrt import GREEDY_OUTPUTS, INPUTS, LOGITS_OUTPUTS
from svtool.errors import ArtifactError, MissingDependency, SvtoolError
from svtool.flavor import (
    CLASSIC,
    FLAVORS,
    Flavor,
    compute_capability,
    has_cuda_device,
    import_flavor,
    is_installed,
    make_logger,
    version,
)

AnyArray = npt.NDArray[Any]
Shapes = dict[str, tuple[int, ...]]

_RECORDINGS = 16  # CUDA graphs kept, least recently used first out
_GRAPH_FRAMES = (
    16  # with CUDA graphs, lengths are padded up to a multiple (about a second), so that shapes repeat
)
_MIB = 1 << 20


@dataclass(frozen=True)
class _Profile:
    index: int
    least: tuple[int, int]  # batch, frames
    most: tuple[int, int]

    def padded(self, batch: int, frames: int) -> tuple[int, int]:
        return max(batch, self.least[0]), max(frames, self.least[1])


def open_plan(path: Path, *, workers: int = 1, cuda_graphs: bool | None = None) -> TensorRTBackend:
    """Open a plan. Raises ArtifactError that names the plan, the mismatch and the command to use instead.

    `workers`: how many backends the caller will open on this GPU, all of which must fit. `cuda_graphs`: None = where
    `svtool verify --cuda-graphs` has proven them for this plan.
    """
    described, flavor = check_plan(path)
    trt = import_flavor(flavor)
    _check_version(path, described, flavor, version(trt))
    manifest.check_digest(path, described["sha256"], described)
    if cuda_graphs is None:
        proven = described.get("verification") or {}
        cuda_graphs = bool(proven.get("passed") and proven.get("cuda_graphs"))
    device = open_device()
    try:
        return TensorRTBackend(path, described, flavor, trt, device, workers=workers, cuda_graphs=cuda_graphs)
    except BaseException:
        device.close()
        raise


def check_plan(path: Path) -> tuple[dict[str, Any], Flavor]:
    """Manifest and library of a plan. Raises ArtifactError for one that cannot run here; reads no byte of the plan."""
    described = manifest.read_manifest(path)
    flavor = _flavor_of(path, described)
    _check_machine(path, described, flavor)
    return described, flavor


class TensorRTBackend:
    """One engine, one context, one stream, owned by the thread that opened it; any other thread is refused.

    Host buffers (pinned) and device buffers are made when the plan is opened, for the largest shape of every profile.
    What `infer` returns is a copy: the next call does not overwrite it. Numbers that are not finite come back as
    they are, and decoding refuses that item by name.
    """

    def __init__(
        self,
        path: Path,
        described: Mapping[str, Any],
        flavor: Flavor,
        trt: Any,
        device: Device,
        *,
        workers: int = 1,
        cuda_graphs: bool = False,
    ) -> None:
        self.runtime = flavor.runtime
        self.provider = f"{flavor.title} {version(trt)}"
        self.tag_ids = tuple(int(tag) for tag in described["tag_ids"])
        self._path = path
        self._described = described
        self._trt = trt
        self._device = device
        self._owner = threading.current_thread()
        self._logger, self._errors = make_logger(trt)
        self._runtime = trt.Runtime(self._logger)
        self._engine = self._read_engine()
        self._tensors = self._read_tensors()
        self._outputs = tuple(name for name in self._tensors if name not in INPUTS)
        self._profiles = [
            self._read_profile(index) for index in range(self._engine.num_optimization_profiles)
        ]
        self.limits = Limits(
            max(one.most[0] for one in self._profiles),
            max(one.most[1] for one in self._profiles),
            tuple(one.most for one in self._profiles),
        )
        self._check_memory(workers)
        self._context, self._records = self._make_context(cuda_graphs)
        self._active = 0  # a new context is in its first profile
        self._host: dict[str, ByteArray] = {}
        self._addresses: dict[str, int] = {}
        self._allocate()
        self._recordings: OrderedDict[tuple[int, int, int], Recording | None] = OrderedDict()

    def infer(self, batch: Batch) -> Output:
        """Run one batch. Raises SvtoolError when no profile takes its shape, before anything is enqueued."""
        self._check_thread()
        count, frames = batch.feats.shape[:2]
        profile = self._choose(count, frames)
        rows, time = self._padded(profile, count, frames)
        self._fill(batch, rows, time)
        shapes = self._run(profile, rows, time)
        return self._collect(batch, shapes)

    def close(self) -> None:
        self._check_thread()
        for recording in self._recordings.values():
            if recording is not None:
                recording.close()
        self._recordings.clear()
        self._host.clear()
        # the order in which TensorRT wants them gone
        self._context = None
        self._engine = None
        self._runtime = None
        self._device.close()

    def _check_thread(self) -> None:
        here = threading.current_thread()
        if here is not self._owner:
            raise SvtoolError(
                f"the engine {self._path} belongs to the thread {self._owner.name!r} and was called from "
                f"{here.name!r}: open one backend for each thread"
            )

    # --- opening ----------------------------------------------------------------------------------------------

    def _read_engine(self) -> Any:
        data = self._path.read_bytes()
        if hasattr(self._runtime, "get_engine_validity"):
            self._check_validity(data)
        engine = self._runtime.deserialize_cuda_engine(data)
        if engine is None:
            raise ArtifactError(
                f"{self.provider} does not accept {self._path}{self._said()}: "
                f"{_rebuild(self._path, self._described)}"
            )
        return engine

    def _check_validity(self, data: bytes) -> None:
        validity, found = self._runtime.get_engine_validity(data)
        if validity != self._trt.EngineValidity.INVALID:
            return
        members = self._trt.EngineInvalidityDiagnostics.__members__.items()
        reasons = [name for name, member in members if int(found) & int(member)]
        raise ArtifactError(
            f"{self.provider} says that {self._path} (built for compute capability "
            f"{self._described.get('compute_capability')}) does not run on this GPU ({compute_capability()}): "
            f"{', '.join(reasons) or 'no reason given'}; {_rebuild(self._path, self._described)}"
        )

    def _read_tensors(self) -> dict[str, npt.DTypeLike]:
        """Name to type, inputs first, held against the contract."""
        engine = self._engine
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        inputs = [name for name in names if engine.get_tensor_mode(name) == self._trt.TensorIOMode.INPUT]
        outputs = set(names) - set(inputs)
        if set(inputs) != set(INPUTS) or outputs not in (set(GREEDY_OUTPUTS), set(LOGITS_OUTPUTS)):
            raise ArtifactError(
                f"{self._path} is no SenseVoice engine: it takes {', '.join(sorted(inputs))} and gives "
                f"{', '.join(sorted(outputs))}; {_rebuild(self._path, self._described)}"
            )
        ordered = [*INPUTS, *(name for name in names if name in outputs)]
        return {name: self._trt.nptype(engine.get_tensor_dtype(name)) for name in ordered}

    def _read_profile(self, index: int) -> _Profile:
        least, _, most = self._engine.get_tensor_profile_shape(INPUTS[0], index)
        return _Profile(index, (int(least[0]), int(least[1])), (int(most[0]), int(most[1])))

    def _check_memory(self, workers: int) -> None:
        """Refuse what cannot fit while nothing is allocated yet: a context that fails later says only None."""
        for name in ("device_memory_size_v2", "device_memory_size"):  # the second: TensorRT before 10.1
            if hasattr(self._engine, name):
                each = int(getattr(self._engine, name))
                break
        else:
            return
        free, total = self._device.memory()
        if workers * each > free:
            raise SvtoolError(
                f"{self._path} needs {workers} x {each / _MIB:.0f} MiB of GPU memory for {workers} worker(s), and "
                f"{free / _MIB:.0f} of {total / _MIB:.0f} MiB are free: use fewer workers, stop what else runs on "
                "the GPU, or build with a smaller --profile B:SECONDS"
            )

    def _make_context(self, cuda_graphs: bool) -> tuple[Any, bool]:
        """The context, and whether this class records CUDA graphs itself (TensorRT-RTX does it inside)."""
        engine = self._engine
        config: Any = engine.create_runtime_config() if hasattr(engine, "create_runtime_config") else None
        inside = cuda_graphs and hasattr(config, "cuda_graph_strategy")
        records = cuda_graphs and not inside
        if records and not self._device.records:
            raise MissingDependency(
                f"CUDA graphs with {self.provider}", f"cuda-python ({self._device.name} records none)", "trt"
            )
        if inside:
            config.cuda_graph_strategy = self._trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
        context = (
            engine.create_execution_context(runtime_config=config)
            if inside
            else engine.create_execution_context()
        )
        if context is None:
            free, total = self._device.memory()
            raise SvtoolError(
                f"{self.provider} cannot make an execution context for {self._path}{self._said()}: "
                f"{free / _MIB:.0f} of {total / _MIB:.0f} MiB of GPU memory are free"
            )
        return context, records

    def _allocate(self) -> None:
        """The library itself says how large every tensor is at the largest shape of every profile."""
        sizes = dict.fromkeys(self._tensors, 1)
        for profile in self._profiles:
            for name, shape in self._set_shapes(profile, *profile.most).items():
                sizes[name] = max(sizes[name], self._size_bytes(name, shape))
        self._device.synchronize()
        for name, size in sizes.items():
            self._addresses[name] = self._device.allocate(size)
            self._host[name] = self._device.pinned(size)

    # --- one call ---------------------------------------------------------------------------------------------

    def _choose(self, count: int, frames: int) -> _Profile:
        """The profile with the least padding; of equals, the one for the shortest audio."""
        fitting = [one for one in self._profiles if 1 <= count <= one.most[0] and 1 <= frames <= one.most[1]]
        if not fitting:
            known = ", ".join(f"{one.most[0]} x {one.most[1]}" for one in self._profiles)
            raise SvtoolError(
                f"{self._path} takes batches of up to {known} frames, not {count} x {frames}: split the audio, or "
                "build with a larger --profile B:SECONDS"
            )
        return min(fitting, key=lambda one: (math.prod(one.padded(count, frames)), one.most[1], one.most[0]))

    def _padded(self, profile: _Profile, count: int, frames: int) -> tuple[int, int]:
        rows, time = profile.padded(count, frames)
        if self._records:
            time = min(-(-time // _GRAPH_FRAMES) * _GRAPH_FRAMES, profile.most[1])
        return rows, time

    def _fill(self, batch: Batch, rows: int, time: int) -> None:
        """Write the batch into the pinned buffers; rows that only pad are one frame of zeros."""
        count, frames = batch.feats.shape[:2]
        speech = self._view("speech", (rows, time, batch.feats.shape[2]))
        speech[:count, :frames] = batch.feats
        speech[:count, frames:] = 0
        speech[count:] = 0
        given = {
            "speech_lengths": batch.feat_lens,
            "language": batch.language,
            "textnorm": batch.textnorm,
        }
        for name, numbers in given.items():
            view = self._view(name, (rows,))
            view[:count] = numbers
            view[count:] = 1 if name == "speech_lengths" else numbers[0]

    def _run(self, profile: _Profile, rows: int, time: int) -> Shapes:
        """Run what `_fill` wrote, and wait for it. A shape seen before is recorded, and replayed from then on."""
        key = (profile.index, rows, time)
        recording = self._recordings.get(key)
        shapes = self._set_shapes(profile, rows, time)
        if recording is not None:
            recording.launch()
        else:
            self._enqueue(shapes)
        self._device.synchronize()
        if self._records:
            self._remember(key, lambda: self._enqueue(shapes))
        return shapes

    def _set_shapes(self, profile: _Profile, rows: int, time: int) -> Shapes:
        """Make profile and input shapes current; the shape of every tensor."""
        context = self._context
        if profile.index != self._active:
            if not context.set_optimization_profile_async(profile.index, self._device.stream):
                raise self._failed(f"cannot switch to its profile {profile.index}")
            self._active = profile.index
        for name in INPUTS:
            fixed = tuple(int(size) for size in self._engine.get_tensor_shape(name))[2:]
            shape = (rows, time, *fixed) if name == INPUTS[0] else (rows,)
            if not context.set_input_shape(name, shape):
                raise self._failed(f"refuses {name} of shape {list(shape)}")
        unknown = context.infer_shapes()
        if unknown:
            raise self._failed(f"cannot tell the shapes of {', '.join(unknown)}")
        return {name: tuple(int(size) for size in context.get_tensor_shape(name)) for name in self._tensors}

    def _enqueue(self, shapes: Shapes) -> None:
        """Copies in, the engine, copies out: all on one stream, between buffers that never move."""
        for name, address in self._addresses.items():
            if not self._context.set_tensor_address(name, address):
                raise self._failed(f"refuses the address of {name}")
        for name in INPUTS:
            self._device.upload(self._addresses[name], self._view(name, shapes[name]))
        if not self._context.execute_async_v3(self._device.stream):
            raise self._failed(f"failed on a batch of shape {list(shapes[INPUTS[0]])}")
        for name in self._outputs:
            self._device.download(self._view(name, shapes[name]), self._addresses[name])

    def _remember(self, key: tuple[int, int, int], work: Callable[[], None]) -> None:
        """Record on the second use: the first has brought the context up to date with the shape."""
        known = self._recordings
        if key not in known:
            known[key] = None
        elif known[key] is None:
            known[key] = self._device.record(work)
        known.move_to_end(key)
        if len(known) > _RECORDINGS:
            _, oldest = known.popitem(last=False)
            if oldest is not None:
                oldest.close()

    def _collect(self, batch: Batch, shapes: Shapes) -> Output:
        count, frames = len(batch.feats), batch.feats.shape[1] + QUERIES
        results: dict[str, AnyArray] = {}
        for name in self._outputs:
            view = self._view(name, shapes[name])[:count]
            # the next call writes into the same buffer
            results[name] = (view if name in ("tag_logits", "encoder_out_lens") else view[:, :frames]).copy()
        lens = results["encoder_out_lens"]
        if not np.array_equal(lens, batch.feat_lens + QUERIES):
            raise self._failed(
                f"returned the lengths {lens.tolist()} for {batch.feat_lens.tolist()}, {QUERIES} more expected"
            )
        if "ctc_logits" in results:
            return greedy_head(results["ctc_logits"], lens, self.tag_ids)
        return Output(results["token_ids"], results["token_logprobs"], results["tag_logits"], lens)

    def _view(self, name: str, shape: tuple[int, ...]) -> AnyArray:
        """The front of a tensor's pinned buffer, as an array."""
        array: AnyArray = self._host[name][: self._size_bytes(name, shape)].view(self._tensors[name])
        return array.reshape(shape)

    def _size_bytes(self, name: str, shape: tuple[int, ...]) -> int:
        return math.prod(shape) * np.dtype(self._tensors[name]).itemsize

    def _failed(self, what: str) -> SvtoolError:
        return SvtoolError(f"{self._path} {what}{self._said()}")

    def _said(self) -> str:
        """The library's own last words, once."""
        last = f" ({self._errors[-1]})" if self._errors else ""
        self._errors.clear()
        return last


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
            f"CPU, with  svtool transcribe FILE -m {twin}  or  svtool serve {twin}"
        )
    if not is_installed(flavor):
        raise MissingDependency(f"the plan {path}", flavor.title, flavor.extra)
    wanted, here = str(described.get("compute_capability")), compute_capability()
    # which GPUs a portable plan covers is the library's to say
    if here not in wanted.split(", ") and (flavor is CLASSIC or wanted != "portable"):
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
