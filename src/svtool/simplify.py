"""onnxsim under rules: in a child process with a time limit, and kept only if nothing was lost.

Knows what a sound simplification keeps: symbolic axes, linear layers as MatMul, the numbers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svtool import graph as graphs
from svtool.child import run_child
from svtool.errors import SvtoolError
from svtool.parity import compare
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
    nodes_before: int
    nodes_after: int
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class _TooSlow(Exception):
    pass


def simplify(
    path: Path, progress: Progress, *, limit_s: float = TIME_LIMIT_S, worker: str = WORKER
) -> Simplified:
    """Simplify the model at `path` in place if the result is sound; otherwise leave it and say why."""
    before = graphs.load_model(path)
    count = len(before.graph)
    if path.stat().st_size > graphs.MAX_PROTOBUF_BYTES:
        return Simplified(False, count, count, "the model is larger than 2 GB, which onnxsim cannot read")
    work = path.with_name(f".simplified-{path.name}")
    try:
        run_child(worker, {"model": str(path), "target": str(work)}, progress, tick=_deadline(limit_s))
        reason = fault(before, path, work)
        after = len(graphs.load_model(work).graph) if work.is_file() else count
        if reason is None:
            _restore_outputs(before, work)
            work.replace(path)
            return Simplified(True, count, after)
        return Simplified(False, count, after, reason)
    except _TooSlow:
        return Simplified(False, count, count, f"onnxsim took longer than {limit_s:.0f} s")
    except SvtoolError as error:
        return Simplified(False, count, count, str(error).splitlines()[0])
    finally:
        work.unlink(missing_ok=True)


def worker(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The child's work: fold constants and infer shapes, no fusion (it would hide the linears in Gemm)."""
    import onnx
    import onnxsim

    model = onnx.load(payload["model"])
    simplified, checked = onnxsim.simplify(model, perform_optimization=False)
    if not checked:
        raise SvtoolError("onnxsim's own check failed")
    simplified.ir_version = model.ir_version
    onnx.save(simplified, payload["target"])
    return {}


def fault(before: ir.Model, path: Path, simplified: Path) -> str | None:
    """Why the simplified file must not replace the original; None when it may."""
    try:
        after = graphs.load_model(simplified)
    except SvtoolError as error:
        return str(error)
    lost = symbols(before) - symbols(after)
    if lost:
        return f"it lost the symbolic axes {', '.join(sorted(lost))}"
    if len(after.graph) > len(before.graph):
        return f"it has more nodes ({len(after.graph)} instead of {len(before.graph)})"
    missing = {linear.name for linear in graphs.linears(before)} - {one.name for one in graphs.linears(after)}
    if missing:
        return f"it lost {len(missing)} linear layers, first {min(missing)}"
    try:
        parity = compare(path, simplified)
    except SvtoolError as error:
        return str(error).splitlines()[0]
    if parity.sqnr_db < MIN_SQNR_DB:
        return f"its outputs differ (SQNR {parity.sqnr_db:.0f} dB over {len(parity.shapes)} shapes)"
    return None


def symbols(model: ir.Model) -> set[str]:
    """`speech[0]=batch_size` for every symbolic axis of the inputs and outputs."""
    import onnx_ir

    return {
        f"{value.name}[{axis}]"
        for value in (*model.graph.inputs, *model.graph.outputs)
        for axis, dim in enumerate(value.shape or ())
        if isinstance(dim, onnx_ir.SymbolicDim)
    }


def _restore_outputs(before: ir.Model, path: Path) -> None:
    """Put the original names of the axes back; onnxsim may turn them into expressions."""
    after = graphs.load_model(path)
    for mine, theirs in (
        *zip(after.graph.inputs, before.graph.inputs, strict=True),
        *zip(after.graph.outputs, before.graph.outputs, strict=True),
    ):
        mine.shape = theirs.shape
    after.metadata_props.update(before.metadata_props)
    graphs.save_model(after, path)


def _deadline(limit_s: float) -> Any:
    def tick(elapsed: float) -> None:
        if elapsed > limit_s:
            raise _TooSlow

    return tick
