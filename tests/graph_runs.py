"""Graphs as bytes, run in ONNX Runtime, and the clipping points of the small graph on noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime

from svtool import graph as graphs
from svtool import parity

Arrays = list[np.ndarray[Any, Any]]


def as_bytes(model: ir.Model) -> bytes:
    return ir.to_proto(model).SerializeToString(deterministic=True)


def run(model: ir.Model, feed: dict[str, Any]) -> Arrays:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(as_bytes(model), options, providers=["CPUExecutionProvider"])
    return session.run(None, feed)


def run_half(model: ir.Model, feed: dict[str, Any]) -> tuple[Arrays, dict[str, np.ndarray[Any, Any]]]:
    """Outputs, and every fp16 tensor by name as fp16 holds it.

    ONNX Runtime on a CPU keeps inner fp16 tensors in float32, which hides overflow; as outputs they are rounded.
    """
    probed = model.clone()
    shown = [
        value
        for node in probed.graph
        for value in node.outputs
        if value.dtype is ir.DataType.FLOAT16 and value.uses()
    ]
    count = len(probed.graph.outputs)
    probed.graph.outputs.extend(shown)
    found = run(probed, feed)
    return found[:count], dict(zip((str(value.name) for value in shown), found[count:], strict=True))


def sqnr_db(reference: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> float:
    return float(10 * np.log10(np.square(reference).sum() / np.square(reference - found).sum()))


def recorded(model: ir.Model, names: list[str], frames: int = 60) -> dict[str, np.ndarray[Any, Any]]:
    """What tensors of `model` hold on noise, by name."""
    probed = model.clone()
    inside = {str(output.name): output for node in probed.graph for output in node.outputs}
    probed.graph.outputs[:] = [inside[name] for name in names]
    return dict(zip(names, run(probed, parity.make_feed(frames, (frames, frames))), strict=True))


def linear_ranges(model: ir.Model) -> dict[str, float]:
    """A clipping point for every linear input: the largest value on noise, and some room."""
    names = list(dict.fromkeys(linear.source for linear in graphs.linears(model)))
    return {name: 1.1 * float(np.abs(array).max()) for name, array in recorded(model, names).items()}
