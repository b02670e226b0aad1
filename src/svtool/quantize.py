"""Graph to graph: linear layers to int8, with activations (explicit Q/DQ, for GPUs or for CPUs) or weights only.

Takes the float32 graph or its fp16 rewrite; a linear layer is named alike in both. Pure functions: the argument is
never changed, the same input gives the same bytes, a second application is refused. Knows nothing of where ranges
come from or what TensorRT makes of the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from svtool import graph as graphs
from svtool import rewrite
from svtool.errors import ArtifactError, UsageError
from svtool.layers import check_names, quantizable

if TYPE_CHECKING:
    import onnx_ir as ir

INT8_MAX = 127
UINT8_MAX = 255
QDQ_OPSET = 19  # the first that lets Q/DQ carry fp16 scales
_OLDEST_OPSET = 17

FloatArray = npt.NDArray[np.float32]

# Operators whose meaning changed between opset 17 and 19 in a way that raising the number alone would break.
_CHANGED_OPS = frozenset(
    (
        *(
            "BitShift",
            "Pad",
            "ReduceL1",
            "ReduceL2",
            "ReduceLogSum",
            "ReduceLogSumExp",
            "ReduceMax",
            "ReduceMean",
        ),
        *("ReduceMin", "ReduceProd", "ReduceSumSquare", "Resize"),
    )
)


def to_int8(model: ir.Model, amax: Mapping[str, float], *, layers: Sequence[str] | None = None) -> ir.Model:
    """W8A8 by explicit Q/DQ around linear layers: symmetric, one scale per activation tensor and weight column.

    `amax` maps the float32 model's tensor names to the calibrated clipping point; scale = amax / 127. `layers` are
    exact names, all but the logits layer if None. FSMN convolutions and attention products are left alone.
    """
    model = rewrite.with_types(model.clone())
    graphs.check_not_quantized(model, "the graph")
    chosen = _chosen(model, layers)
    scales = {linear.source: _activation_scale(linear, amax) for linear in chosen}
    _raise_opset(model)
    make = rewrite.Maker(model.graph)

    def restored(activation: ir.Value, linear: graphs.Linear) -> ir.Value:
        return _quantized_activation(make, activation, scales[linear.source], linear.name)

    _share_activations(chosen, restored, lambda linear: _quantize_weight(model, make, linear))
    model.metadata_props[graphs.PRECISION_KEY] = "int8"
    return model


def to_int8_cpu(
    model: ir.Model, amax: Mapping[str, float], *, layers: Sequence[str] | None = None
) -> ir.Model:
    """W8A8 that every x86 CPU computes alike: uint8 activations, int8 weights whose products fit 16 bits in pairs.

    CPUs without VNNI add two neighbouring products, uint8 times int8, in 16 bits, and what does not fit is cut off
    without a word. Here no two neighbours in a weight column reach that limit, whatever the activations are, which
    makes some steps coarser (`_loudest_pair`). What a Relu gives uses all of uint8 (scale = amax / 255). Takes the
    float32 graph; `amax` and `layers` as in `to_int8`.
    """
    model = rewrite.with_types(model.clone())
    rewrite.refuse_converted(model, ("FLOAT16", "BFLOAT16"))
    chosen = _chosen(model, layers)
    scales = {linear.source: _activation_scale(linear, amax) for linear in chosen}
    make = rewrite.Maker(model.graph)

    def restored(activation: ir.Value, linear: graphs.Linear) -> ir.Value:
        scale, zero = scales[linear.source], np.uint8(128)
        producer = activation.producer()
        if producer is not None and producer.op_type == "Relu":
            scale, zero = scale * INT8_MAX / UINT8_MAX, np.uint8(0)
        return _quantized_activation(make, activation, scale, linear.name, zero)

    _share_activations(chosen, restored, lambda linear: _quantize_weight(model, make, linear, _loudest_pair))
    model.metadata_props[graphs.PRECISION_KEY] = "int8"
    return model


def to_int8_weights(model: ir.Model, *, layers: Sequence[str] | None = None) -> ir.Model:
    """Weight-only: int8 per weight column behind a DequantizeLinear, activations as they are. Needs no ranges."""
    model = rewrite.with_types(model.clone())
    graphs.check_not_quantized(model, "the graph")
    chosen = _chosen(model, layers)
    _raise_opset(model)
    make = rewrite.Maker(model.graph)
    for linear in chosen:
        _quantize_weight(model, make, linear)
    model.metadata_props[graphs.PRECISION_KEY] = "int8-weights"
    return model


def _share_activations(
    chosen: Sequence[graphs.Linear],
    restored: Callable[[ir.Value, graphs.Linear], ir.Value],
    quantize_weight: Callable[[graphs.Linear], None],
) -> None:
    """Layers that read one tensor read one quantized copy of it; `restored` makes it, once for each tensor."""
    shared: dict[ir.Value, ir.Value] = {}
    for linear in chosen:
        activation = linear.node.inputs[0]
        assert activation is not None
        if activation not in shared:
            shared[activation] = restored(activation, linear)
        linear.node.replace_input_with(0, shared[activation])
        quantize_weight(linear)


def _chosen(model: ir.Model, wanted: Sequence[str] | None) -> list[graphs.Linear]:
    every = {linear.name: linear for linear in graphs.linears(model)}
    asked = quantizable(model) if wanted is None else wanted
    check_names(every, asked)
    chosen = [linear for name, linear in every.items() if name in set(asked)]
    if not chosen:
        raise UsageError(
            "no linear layer is left to quantize: keep fewer out of int8, or build with  --fp16  in place of --int8"
        )
    return chosen


def _loudest(weight: FloatArray) -> FloatArray:
    """Per column [N] of a weight [K, N], the value that becomes 127."""
    largest: FloatArray = np.abs(weight).max(axis=0)
    return largest


def _loudest_pair(weight: FloatArray) -> FloatArray:
    """The largest sum of two neighbours of one sign (rows 0 and 1, 2 and 3, ...), or the largest value alone.

    As 127 it leaves two rounded weights at 128 together at most: 255 * 128 = 32640, and 16 bits hold 32767.
    """
    pairs = np.pad(weight, ((0, len(weight) % 2), (0, 0))).reshape(-1, 2, weight.shape[1])
    above, below = (np.maximum(side, 0).sum(axis=1).max(axis=0) for side in (pairs, -pairs))
    largest: FloatArray = np.maximum(above, below)
    return largest


def _quantize_weight(
    model: ir.Model,
    make: rewrite.Maker,
    linear: graphs.Linear,
    loudest: Callable[[FloatArray], FloatArray] = _loudest,
) -> None:
    weight = linear.node.inputs[1]
    assert weight is not None
    linear.node.replace_input_with(1, _quantized_weight(make, weight, linear, loudest))
    if not weight.uses():
        del model.graph.initializers[str(weight.name)]


def _activation_scale(linear: graphs.Linear, amax: Mapping[str, float]) -> float:
    if linear.source not in amax:
        raise ArtifactError(
            f"the calibration has no range for {linear.source!r}, the input of {linear.name}: "
            "calibrate again with  svtool build-trt --int8 --data LIST"
        )
    value = amax[linear.source]
    if not (np.isfinite(value) and value > 0):
        raise ArtifactError(
            f"the calibrated range of {linear.source!r}, the input of {linear.name}, is {value}: "
            "a scale must be finite and above zero; calibrate again with  svtool build-trt --int8 --data LIST"
        )
    return float(value) / INT8_MAX


def _quantized_activation(
    make: rewrite.Maker,
    value: ir.Value,
    scale: float,
    layer: str,
    zero_point: np.int8 | np.uint8 = np.int8(0),  # noqa: B008 - a number
) -> ir.Value:
    import onnx_ir as ir

    assert value.dtype is not None
    stored = np.array(scale, dtype=value.dtype.numpy())
    if not (np.isfinite(stored) and stored > 0):
        raise ArtifactError(
            f"the scale {scale:g} of {value.name}, the input of {layer}, is not a usable {stored.dtype}"
        )
    name = str(value.name)
    step = make.constant(f"{name}/scale", stored)
    zero = make.constant(f"{name}/zero", np.array(zero_point))
    quantized = make.node_after(value.producer(), "QuantizeLinear", [value, step, zero], f"{name}/q")
    restored = make.node_after(
        quantized.producer(), "DequantizeLinear", [quantized, step, zero], f"{name}/dq"
    )
    dims = list(value.shape) if value.shape is not None else None
    rewrite.describe(quantized, ir.DataType.from_numpy(zero_point.dtype), dims)
    rewrite.describe(restored, value.dtype, dims)
    return restored


def _quantized_weight(
    make: rewrite.Maker, value: ir.Value, linear: graphs.Linear, loudest: Callable[[FloatArray], FloatArray]
) -> ir.Value:
    assert value.const_value is not None
    assert value.dtype is not None
    numbers = value.const_value.numpy().astype(np.float32)  # [K, N]
    columns = loudest(numbers)
    if not np.isfinite(columns).all():
        raise ArtifactError(
            f"the weight of {linear.name} is not finite: the checkpoint is damaged, or its training diverged; "
            "export a sound one with  svtool export SOURCE"
        )
    kind = value.dtype.numpy()
    # a column of zeros needs any scale above zero; the smallest one keeps tiny columns from rounding to zero scale
    steps = np.where(
        columns > 0, np.maximum(columns / INT8_MAX, np.finfo(kind).smallest_subnormal), 1.0
    ).astype(kind)
    whole = np.clip(np.rint(numbers / steps.astype(np.float32)), -INT8_MAX, INT8_MAX).astype(np.int8)
    name = str(value.name)
    inputs = [
        make.constant(f"{name}/int8", whole),
        make.constant(f"{name}/scales", steps),
        make.constant(f"{name}/zeros", np.zeros(len(steps), np.int8)),
    ]
    restored = make.node_before(
        linear.node, "DequantizeLinear", inputs, f"{name}/dq@{linear.node.name}", axis=1
    )
    rewrite.describe(restored, value.dtype, linear.shape)
    return restored


def _raise_opset(model: ir.Model) -> None:
    opset = model.opset_imports[""]
    if opset >= QDQ_OPSET:
        return
    changed = sorted({node.op_type for node in model.graph} & _CHANGED_OPS)
    if opset < _OLDEST_OPSET or (opset < 18 and changed):
        raise ArtifactError(
            f"the model has opset {opset}{' with ' + ', '.join(changed) if changed else ''}, which cannot be raised "
            f"to {QDQ_OPSET}: export again with  svtool export SOURCE --opset 18"
        )
    model.opset_imports[""] = QDQ_OPSET
    for node in model.graph:
        node.version = None
