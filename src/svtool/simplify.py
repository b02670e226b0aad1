"""onnxsim under rules: in a child process with a time limit, and kept only if nothing was lost.

Knows what a sound simplification keeps: symbolic axes, linear layers as MatMul, the numbers. It only ever replaces a
model by an equal one; whatever goes wrong, the original stays and the reason is told.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svtool import graph as graphs
from svtool.child import run_child
from svtool.errors import MissingDependency, SvtoolError
from svtool.parity import Parity, compare
from svtool.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir

TIME_LIMIT_S = 300.0
MIN_SQNR_DB = 100.0  # constant folding may reorder a product, nothing more
WORKER = "simplify:worker"


@dataclass(frozen=True)
class Simplified:
    """What became of the attempt. `reason` says why the original was kept."""

    kept: bool
    nodes_before: int | None  # None = the model was not even read
    nodes_after: int | None
    reason: str | None = None
    parity: dict[str, Any] | None = None  # simplified against original
    min_sqnr_db: float = MIN_SQNR_DB

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class _TooSlow(Exception):
    pass


class Unsound(Exception):
    """The simplified model must not replace the original; the message says why."""


def simplify(
    path: Path, progress: Progress, *, limit_s: float = TIME_LIMIT_S, worker: str = WORKER
) -> Simplified:
    """Simplify the model at `path` in place if the result is sound; otherwise leave it and say why."""
    too_large = "the model is larger than 2 GB, which onnxsim cannot read"
    if path.stat().st_size > graphs.MAX_PROTOBUF_BYTES:
        return Simplified(False, None, None, too_large)
    before = graphs.load_model(path)
    count = len(before.graph)
    if graphs.weight_bytes(before) > graphs.MAX_PROTOBUF_BYTES:
        return Simplified(False, count, count, too_large)
    named, work = (path.with_name(f".{kind}-{path.name}") for kind in ("named", "simplified"))
    try:
        source = path
        if name_axes(before):
            graphs.save_model(before, named)
            source = named
        # the child takes three times the model's size and nothing is needed here meanwhile; graphs are full of cycles
        del before
        gc.collect()
        payload = {"model": str(source), "target": str(work)}
        run_child(worker, payload, progress, tick=_deadline(limit_s))
        before = graphs.load_model(source)
        after, parity = check(before, source, work)
        _restore_interface(before, after)
        graphs.save_model(after, work)
        work.replace(path)
        return Simplified(True, count, len(after.graph), parity=parity.to_json())
    except _TooSlow:
        return Simplified(False, count, count, f"onnxsim took longer than {limit_s:.0f} s")
    except (Unsound, SvtoolError) as error:
        return Simplified(False, count, count, str(error).splitlines()[0])
    finally:
        named.unlink(missing_ok=True)
        work.unlink(missing_ok=True)


def worker(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The child's work: fold constants and infer shapes, no fusion (it would hide the linears in Gemm)."""
    import onnx

    try:
        import onnxsim
    except ImportError as error:
        raise MissingDependency("simplifying", "onnxsim", "export") from error

    # the path, not a loaded model: two copies of the weights less; never an input shape: it would overwrite the axes
    simplified, checked = onnxsim.simplify(payload["model"], perform_optimization=False)
    if not checked:
        raise SvtoolError("onnxsim's own check failed")
    onnx.save(simplified, payload["target"])
    return {}


def check(before: ir.Model, path: Path, simplified: Path) -> tuple[ir.Model, Parity]:
    """The simplified model and how near it is to the original at `path`. Raises Unsound when something was lost."""
    after = graphs.load_model(simplified)
    if interface(before) != interface(after):
        raise Unsound("onnxsim changed the names or types of inputs or outputs")
    if lost := symbols(before) - symbols(after):
        raise Unsound(f"onnxsim lost the symbolic axes {', '.join(sorted(lost))}")
    if before.opset_imports.get("") != after.opset_imports.get(""):
        raise Unsound(f"onnxsim changed the opset to {after.opset_imports.get('')}")
    if len(after.graph) > len(before.graph):
        raise Unsound(f"onnxsim made more nodes ({len(after.graph)} instead of {len(before.graph)})")
    missing = {linear.name for linear in graphs.linears(before)} - {one.name for one in graphs.linears(after)}
    if missing:
        raise Unsound(f"onnxsim lost {len(missing)} linear layers, first {min(missing)}")
    parity = compare(path, simplified)
    if parity.sqnr_db < MIN_SQNR_DB:
        raise Unsound(
            f"onnxsim's outputs differ (SQNR {parity.sqnr_db:.0f} dB over {len(parity.shapes)} shapes, "
            f"at least {MIN_SQNR_DB:.0f} dB is asked)"
        )
    return after, parity


def interface(model: ir.Model) -> list[tuple[str | None, str | None]]:
    values = (*model.graph.inputs, *model.graph.outputs)
    return [(value.name, value.dtype.name if value.dtype is not None else None) for value in values]


def symbols(model: ir.Model) -> set[str]:
    """`speech[0]` for every symbolic axis of the inputs and outputs."""
    return {
        f"{value.name}[{axis}]"
        for value in (*model.graph.inputs, *model.graph.outputs)
        for axis, dim in enumerate(value.shape or ())
        if not isinstance(dim, int)
    }


def name_axes(model: ir.Model) -> bool:
    """Give dynamic axes written as -1, 0 or nothing a name, in place; whether there were any."""
    import onnx_ir

    found = False
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.shape is None:
            continue
        known = graphs.AXES.get(str(value.name), ())
        dims: list[int | str] = []
        for axis, dim in enumerate(value.shape):
            size = dim if isinstance(dim, int) else dim.value
            if size is None or (isinstance(size, int) and size < 1):
                size = known[axis] if axis < len(known) else f"{value.name}_{axis}"
                found = True
            dims.append(size)
        value.shape = onnx_ir.Shape(dims)
    return found


def _restore_interface(before: ir.Model, after: ir.Model) -> None:
    """Put the original axis names, IR version and metadata back: onnxsim writes expressions, and notes of its own."""
    for mine, theirs in (
        *zip(after.graph.inputs, before.graph.inputs, strict=True),
        *zip(after.graph.outputs, before.graph.outputs, strict=True),
    ):
        mine.shape = theirs.shape
    after.ir_version = before.ir_version
    after.metadata_props.clear()
    after.metadata_props.update(before.metadata_props)


def _deadline(limit_s: float) -> Callable[[float], None]:
    def tick(elapsed: float) -> None:
        if elapsed > limit_s:
            raise _TooSlow

    return tick
