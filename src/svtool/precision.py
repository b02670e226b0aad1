"""Graph to graph: float32 to fp16, to int8 (explicit Q/DQ), and the greedy head.

Pure functions: the argument is never changed, the same input gives the same bytes, a second application is
refused. Knows nothing of files, utterances or TensorRT. The order that works is
float32 -> calibrate -> to_fp16 -> to_int8 -> add_greedy_head.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from svtool import graph as graphs
from svtool.errors import ArtifactError, UsageError

if TYPE_CHECKING:
    import onnx_ir as ir

FP16_MAX = 65504.0
FP16_SAFE = FP16_MAX / 4  # recorded ranges above this stay in float32: the next utterance may be louder
INT8_MAX = 127
QDQ_OPSET = 19  # the first that lets Q/DQ carry fp16 scales
_OLDEST_OPSET = 17

# Operators that may run in fp16. Everything else (LayerNormalization, Softmax, whatever an exporter adds) is a
# float32 island.
_NARROW_OPS = frozenset(
    (
        *(
            "Add",
            "Concat",
            "Conv",
            "Div",
            "Expand",
            "Gather",
            "Gemm",
            "Identity",
            "MatMul",
            "Mul",
            "Pad",
            "Relu",
        ),
        *("Reshape", "Slice", "Split", "Squeeze", "Sub", "Transpose", "Unsqueeze", "Where"),
    )
)
_TYPE_BLIND_OPS = frozenset(("Shape", "Size"))
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


def add_greedy_head(model: ir.Model, tag_ids: Sequence[int]) -> ir.Model:
    """Replace `ctc_logits` by what greedy decoding needs; the ids come back in metadata `svtool.tag_ids`.

    Outputs: token_ids i32 [B, T+4], token_logprobs f32 [B, T+4] (natural log), tag_logits f32 [B, 4, K],
    encoder_out_lens i32 [B].
    """
    import onnx_ir as ir

    model = model.clone()
    graph = model.graph
    outputs = {str(value.name): value for value in graph.outputs}
    if graphs.LOGITS not in outputs:
        raise ArtifactError(
            f"the graph has no {graphs.LOGITS} output: the greedy head is added once, to a logits head"
        )
    logits = outputs[graphs.LOGITS]
    vocabulary = _last_dim(logits)
    wrong = [tag for tag in tag_ids if tag < 0 or (vocabulary is not None and tag >= vocabulary)]
    if not tag_ids or wrong:
        raise ArtifactError(f"tag ids {list(wrong or tag_ids)} do not fit a vocabulary of {vocabulary}")
    make = _Maker(graph)
    batch, time = (logits.shape or ir.Shape(("batch_size", "logits_length")))[:2]
    last = make.constant("greedy/last_axis", np.array([-1], np.int64))
    ids64 = make.node("ArgMax", [logits], "greedy/ids", axis=-1, keepdims=0)
    token_ids = make.node("Cast", [ids64], "token_ids", to=ir.DataType.INT32)
    top = make.node("ReduceMax", [logits, last], "greedy/top", keepdims=1)
    shifted = make.node("Exp", [make.node("Sub", [logits, top], "greedy/shifted")], "greedy/exp")
    total = make.node("ReduceSum", [shifted, last], "greedy/total", keepdims=0)
    logprobs = make.node("Neg", [make.node("Log", [total], "greedy/log_total")], "token_logprobs")
    starts, ends, axis = (
        make.constant(f"greedy/{name}", np.array([number], np.int64))
        for name, number in (("starts", 0), ("ends", 4), ("axis", 1))
    )
    queries = make.node("Slice", [logits, starts, ends, axis], "greedy/queries")
    ids = make.constant("greedy/tag_ids", np.array(tag_ids, np.int64))
    tag_logits = make.node("Gather", [queries, ids], "tag_logits", axis=2)
    _describe(token_ids, ir.DataType.INT32, (batch, time))
    _describe(logprobs, ir.DataType.FLOAT, (batch, time))
    _describe(tag_logits, ir.DataType.FLOAT, (batch, 4, len(tag_ids)))
    graph.outputs[:] = [token_ids, logprobs, tag_logits, outputs[graphs.LENGTHS]]
    model.metadata_props[graphs.TAG_IDS_KEY] = ",".join(str(tag) for tag in tag_ids)
    return model


def to_fp16(
    model: ir.Model, ranges: Mapping[str, float] | None = None, *, keep_fp32: Sequence[str] = ()
) -> ir.Model:
    """Half precision with float32 islands; float I/O stays float32, control I/O int32.

    Float32 stay: everything in front of the first linear (query table, input scale, position encoding, mask),
    LayerNormalization, Softmax with the mask added to it, layers matching `keep_fp32`, and whatever `ranges`
    (tensor name to recorded abs-max) shows above FP16_SAFE. Residual adds without a recorded range stay float32
    too: nobody has measured that they fit.
    """
    import onnx_ir as ir

    model = _with_types(model.clone())
    _refuse_converted(model, ("FLOAT16", "BFLOAT16"))
    reached = graphs.after_linears(model)
    wide = _wide_nodes(model, ranges, keep_fp32)
    narrow = {
        node: None
        for node in model.graph
        if node in reached and node not in wide and node.op_type in _NARROW_OPS
    }
    half = {output: None for node in narrow for output in node.outputs if output.dtype is ir.DataType.FLOAT}
    casts = _Casts(model, set(narrow))
    for node in list(model.graph):
        if node.op_type in _TYPE_BLIND_OPS:
            continue
        for index, value in enumerate(node.inputs):
            if value is None or value.dtype is not ir.DataType.FLOAT:
                continue
            if node in narrow and value not in half:
                node.replace_input_with(index, casts.narrowed(value))
            elif node not in narrow and value in half:
                node.replace_input_with(index, casts.cast(value, ir.DataType.FLOAT))
    for index, output in enumerate(model.graph.outputs):
        if output in half:
            model.graph.outputs[index] = casts.output(output)
    for value in half:
        value.type = ir.TensorType(ir.DataType.FLOAT16)
    model.metadata_props[graphs.PRECISION_KEY] = "fp16"
    return model


def to_int8(model: ir.Model, amax: Mapping[str, float], *, exclude: Sequence[str] = ()) -> ir.Model:
    """W8A8 by explicit Q/DQ around linear layers: symmetric, one scale per activation tensor and weight column.

    `amax` maps the float32 model's tensor names to the calibrated clipping point; scale = amax / 127. The logits
    layer, the FSMN convolutions and the attention products are left alone, as are layers matching `exclude`
    (shell patterns on names such as `encoder.encoders.3.feed_forward.w_2`).
    """

    model = _with_types(model.clone())
    graphs.check_not_quantized(model, "the graph")
    chosen = quantized_linears(model, exclude)
    scales = {linear.source: _activation_scale(linear, amax) for linear in chosen}
    _raise_opset(model)
    make = _Maker(model.graph)
    shared: dict[ir.Value, ir.Value] = {}
    for linear in chosen:
        activation, weight = linear.node.inputs[0], linear.node.inputs[1]
        assert activation is not None
        assert weight is not None
        if activation not in shared:
            shared[activation] = _quantized_activation(make, activation, scales[linear.source], linear.name)
        linear.node.replace_input_with(0, shared[activation])
        linear.node.replace_input_with(1, _quantized_weight(make, weight, linear))
        if not weight.uses():
            del model.graph.initializers[str(weight.name)]
    model.metadata_props[graphs.PRECISION_KEY] = "int8"
    return model


def quantized_linears(model: ir.Model, exclude: Sequence[str] = ()) -> list[graphs.Linear]:
    """The layers `to_int8` quantizes. Raises UsageError for a pattern that matches no layer."""
    every = list(graphs.linears(model))
    for pattern in exclude:
        if not any(fnmatch.fnmatchcase(linear.name, pattern) for linear in every):
            raise UsageError(
                f"the exclusion {pattern!r} matches no layer; layers are named like {every[0].name if every else '-'}"
            )
    return [
        linear
        for linear in every
        if not linear.head and not any(fnmatch.fnmatchcase(linear.name, pattern) for pattern in exclude)
    ]


def _wide_nodes(
    model: ir.Model, ranges: Mapping[str, float] | None, keep_fp32: Sequence[str]
) -> set[ir.Node]:
    """Nodes after the first linear that must stay float32 although their operator could run in fp16."""
    known = ranges or {}

    def loud(value: ir.Value | None) -> bool:
        recorded = known.get(str(value.name)) if value is not None else None
        return recorded is not None and not recorded <= FP16_SAFE  # also true for NaN

    wide = {node for node in model.graph if any(loud(output) for output in node.outputs)}
    for node in model.graph:
        if node.op_type == "Softmax" and node.inputs[0] is not None:
            masking = node.inputs[0].producer()
            if masking is not None and masking.op_type == "Add" and len(masking.outputs[0].uses()) == 1:
                wide.add(masking)
    for node in graphs.residual_adds(model):
        if str(node.outputs[0].name) not in known or any(loud(value) for value in node.inputs):
            wide.add(node)
    for linear in graphs.linears(model):
        if any(fnmatch.fnmatchcase(linear.name, pattern) for pattern in keep_fp32):
            wide.update(node for node in (linear.node, linear.bias) if node is not None)
        if linear.bias in wide:  # the bias cannot bring an overflowing product back
            wide.add(linear.node)
    return wide


class _Casts:
    """Shared casts and half-precision weights of one graph."""

    def __init__(self, model: ir.Model, narrow: set[ir.Node]) -> None:
        self._graph = model.graph
        self._narrow = narrow
        self._made: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def narrowed(self, value: ir.Value) -> ir.Value:
        import onnx_ir as ir

        if value.const_value is None:
            return self.cast(value, ir.DataType.FLOAT16)
        key = (value, ir.DataType.FLOAT16)
        if key not in self._made:
            self._made[key] = self._half_weight(value)
        return self._made[key]

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        if (value, dtype) not in self._made:
            self._made[value, dtype] = self._cast_node(value, f"{value.name}/{_short(dtype)}", dtype)
        return self._made[value, dtype]

    def output(self, value: ir.Value) -> ir.Value:
        """A float32 graph output in place of a half-precision one, under the same name."""
        import onnx_ir as ir

        name = str(value.name)
        value.name = f"{name}/fp16"
        return self._cast_node(value, name, ir.DataType.FLOAT)

    def _cast_node(self, value: ir.Value, name: str, dtype: ir.DataType) -> ir.Value:
        import onnx_ir as ir

        output = ir.Value(name=name, shape=_copied(value), type=ir.TensorType(dtype))
        node = ir.Node(
            "", "Cast", [value], [ir.AttrInt64("to", int(dtype))], outputs=[output], name=f"cast/{name}"
        )
        producer = value.producer()
        if producer is None:
            self._graph.insert_before(self._graph[0], node)
        else:
            self._graph.insert_after(producer, node)
        return output

    def _half_weight(self, value: ir.Value) -> ir.Value:

        assert value.const_value is not None
        numbers = value.const_value.numpy()
        largest = float(np.abs(numbers).max(initial=0.0))
        if not largest <= FP16_MAX:
            raise ArtifactError(
                f"the weight {value.name} holds {largest:g}, which fp16 cannot: "
                f"keep its layer in float32 (largest fp16 value {FP16_MAX:g})"
            )
        name = str(value.name)
        if all(use.node in self._narrow for use in value.uses()):
            del self._graph.initializers[name]
        else:
            name = f"{name}/fp16"
        return _register(self._graph, name, numbers.astype(np.float16))


class _Maker:
    """Appends nodes and constants with fixed names, so that the same input gives the same bytes."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph

    def constant(self, name: str, numbers: npt.NDArray[Any]) -> ir.Value:
        return _register(self._graph, name, numbers)

    def node(self, op: str, inputs: Sequence[ir.Value], name: str, **attributes: int) -> ir.Value:
        node, output = self._new(op, inputs, name, attributes)
        self._graph.append(node)
        return output

    def node_after(self, place: ir.Node | None, op: str, inputs: Sequence[ir.Value], name: str) -> ir.Value:
        node, output = self._new(op, inputs, name, {})
        if place is None:
            self._graph.insert_before(self._graph[0], node)
        else:
            self._graph.insert_after(place, node)
        return output

    def node_before(
        self, place: ir.Node, op: str, inputs: Sequence[ir.Value], name: str, **attributes: int
    ) -> ir.Value:
        node, output = self._new(op, inputs, name, attributes)
        self._graph.insert_before(place, node)
        return output

    def _new(
        self, op: str, inputs: Sequence[ir.Value], name: str, attributes: Mapping[str, int]
    ) -> tuple[ir.Node, ir.Value]:
        import onnx_ir as ir

        output = ir.Value(name=name)
        listed = [ir.AttrInt64(key, int(value)) for key, value in attributes.items()]
        return ir.Node("", op, inputs, listed, outputs=[output], name=f"{op}/{name}"), output


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


def _quantized_activation(make: _Maker, value: ir.Value, scale: float, layer: str) -> ir.Value:
    import onnx_ir as ir

    assert value.dtype is not None
    stored = np.array(scale, dtype=value.dtype.numpy())
    if not (np.isfinite(stored) and stored > 0):
        raise ArtifactError(
            f"the scale {scale:g} of {value.name}, the input of {layer}, is not a usable {stored.dtype}"
        )
    name = str(value.name)
    step = make.constant(f"{name}/scale", stored)
    zero = make.constant(f"{name}/zero", np.array(0, np.int8))
    quantized = make.node_after(value.producer(), "QuantizeLinear", [value, step, zero], f"{name}/q")
    restored = make.node_after(
        quantized.producer(), "DequantizeLinear", [quantized, step, zero], f"{name}/dq"
    )
    dims = list(value.shape) if value.shape is not None else None
    _describe(quantized, ir.DataType.INT8, dims)
    _describe(restored, value.dtype, dims)
    return restored


def _quantized_weight(make: _Maker, value: ir.Value, linear: graphs.Linear) -> ir.Value:
    assert value.const_value is not None
    assert value.dtype is not None
    numbers = value.const_value.numpy().astype(np.float32)  # [K, N]
    columns = np.abs(numbers).max(axis=0)
    if not np.isfinite(columns).all():
        raise ArtifactError(f"the weight of {linear.name} is not finite")
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
    _describe(restored, value.dtype, linear.shape)
    return restored


def _raise_opset(model: ir.Model) -> None:
    opset = model.opset_imports[""]
    if opset >= QDQ_OPSET:
        return
    changed = sorted({node.op_type for node in model.graph} & _CHANGED_OPS)
    if opset < _OLDEST_OPSET or (opset < 18 and changed):
        raise ArtifactError(
            f"the model has opset {opset}{' with ' + ', '.join(changed) if changed else ''}, which cannot be raised "
            f"to {QDQ_OPSET}: export again with  svtool export --opset 18"
        )
    model.opset_imports[""] = QDQ_OPSET
    for node in model.graph:
        node.version = None


def _with_types(model: ir.Model) -> ir.Model:
    """Lift constants to initializers, and infer the types nobody wrote down."""
    from onnx_ir.passes import common

    model = common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model).model
    if any(output.dtype is None for node in model.graph for output in node.outputs):
        model = common.ShapeInferencePass()(model).model
    untyped = [str(output.name) for node in model.graph for output in node.outputs if output.dtype is None]
    if untyped:
        raise ArtifactError(
            f"the type of {untyped[0]!r} cannot be inferred: export the model again with  svtool export"
        )
    return model


def _refuse_converted(model: ir.Model, kinds: Sequence[str]) -> None:
    graphs.check_not_quantized(model, "the graph")
    for value in (output for node in model.graph for output in node.outputs):
        if value.dtype is not None and value.dtype.name in kinds:
            raise ArtifactError(
                f"the graph is {value.dtype.name} already (at {value.name}): start from the float32 model, "
                "made with  svtool export"
            )


def _register(graph: ir.Graph, name: str, numbers: npt.NDArray[Any]) -> ir.Value:
    import onnx_ir as ir

    if name in graph.initializers:
        return graph.initializers[name]
    tensor = ir.Tensor(numbers, name=name)
    value = ir.Value(
        name=name, shape=ir.Shape(numbers.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def _describe(value: ir.Value, dtype: ir.DataType, dims: Sequence[Any] | None) -> None:
    import onnx_ir as ir

    value.type = ir.TensorType(dtype)
    value.shape = ir.Shape(dims) if dims is not None else None


def _copied(value: ir.Value) -> ir.Shape | None:
    import onnx_ir as ir

    return ir.Shape(list(value.shape)) if value.shape is not None else None


def _short(dtype: ir.DataType) -> str:
    return "fp16" if dtype.name == "FLOAT16" else "fp32"


def _last_dim(value: ir.Value) -> int | None:
    size = value.shape[-1] if value.shape is not None else None
    return size if isinstance(size, int) else None
