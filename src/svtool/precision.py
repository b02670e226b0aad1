"""Graph to graph: float32 to fp16 with float32 islands, and the greedy head.

Pure functions: the argument is never changed, the same input gives the same bytes, a second application is
refused. Knows nothing of files, utterances or TensorRT. The order that works is
float32 -> smooth -> to_fp16 -> to_int8 or to_int8_weights (quantize.py) -> add_greedy_head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from svtool import graph as graphs
from svtool import layers, rewrite
from svtool.errors import ArtifactError

if TYPE_CHECKING:
    import onnx_ir as ir

FP16_MAX = 65504.0
FP16_SAFE = FP16_MAX / 4  # recorded ranges above this stay in float32: the next utterance may be louder

# Operators that may run in fp16; everything else (LayerNormalization, Softmax, whatever an exporter adds) is a
# float32 island. What these return is no larger than what they read:
_BOUNDED_OPS = frozenset(
    (
        *("Concat", "Expand", "Gather", "Identity", "Pad", "Relu", "Reshape"),
        *("Slice", "Split", "Squeeze", "Transpose", "Unsqueeze", "Where"),
    )
)
_NARROW_OPS = _BOUNDED_OPS | {"Add", "Conv", "Div", "Gemm", "MatMul", "Mul", "Sub"}
_RECORDED_OPS = frozenset(("Add", "MatMul"))  # ranges name their outputs; what lies between is judged by them
_TYPE_BLIND_OPS = frozenset(("Shape", "Size"))


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
    make = rewrite.Maker(graph)
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
    rewrite.describe(token_ids, ir.DataType.INT32, (batch, time))
    rewrite.describe(logprobs, ir.DataType.FLOAT, (batch, time))
    rewrite.describe(tag_logits, ir.DataType.FLOAT, (batch, 4, len(tag_ids)))
    graph.outputs[:] = [token_ids, logprobs, tag_logits, outputs[graphs.LENGTHS]]
    model.metadata_props[graphs.TAG_IDS_KEY] = ",".join(str(tag) for tag in tag_ids)
    return model


def to_fp16(
    model: ir.Model, ranges: Mapping[str, float] | None = None, *, keep_fp32: Sequence[str] = ()
) -> ir.Model:
    """Half precision with float32 islands; float I/O stays float32, control I/O int32.

    Float32 stay: everything in front of the first linear (query table, input scale, position encoding, mask),
    LayerNormalization, Softmax with the mask added to it, layers matching `keep_fp32`, and whatever `ranges`
    (tensor name to recorded abs-max) shows above FP16_SAFE, with all that makes or reads it. Residual adds without
    a recorded range stay float32 too: nobody has measured that they fit.
    """
    import onnx_ir as ir

    model = rewrite.with_types(model.clone())
    rewrite.refuse_converted(model, ("FLOAT16", "BFLOAT16"))
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


def _wide_nodes(
    model: ir.Model, ranges: Mapping[str, float] | None, keep_fp32: Sequence[str]
) -> set[ir.Node]:
    """Nodes after the first linear that must stay float32 although their operator could run in fp16."""
    known = ranges or {}
    kept = set(layers.match(model, keep_fp32))
    wide: set[ir.Node] = set()
    for value in _loud_values(model, known):
        producer = value.producer()
        wide.update(graphs.users(value) if producer is None else (producer, *graphs.users(value)))
    for node in model.graph:
        if node.op_type == "Softmax" and node.inputs[0] is not None:
            masking = node.inputs[0].producer()
            if masking is not None and masking.op_type == "Add" and len(masking.outputs[0].uses()) == 1:
                wide.add(masking)
    wide.update(node for node in graphs.residual_adds(model) if str(node.outputs[0].name) not in known)
    for linear in graphs.linears(model):
        if linear.name in kept:
            wide.update(node for node in (linear.node, linear.bias) if node is not None)
        if linear.bias in wide:  # the bias cannot bring an overflowing product back
            wide.add(linear.node)
    return wide


def _loud_values(model: ir.Model, known: Mapping[str, float]) -> dict[ir.Value, None]:
    """Tensors that fp16 may not hold: recorded as such, or without a record between one of them and the next record.

    A constant that fp16 cannot hold makes what is computed from it loud, unless a record says otherwise.
    """
    reached = graphs.after_linears(model)

    def unknown(value: ir.Value) -> bool:
        producer = value.producer()
        return producer in reached and producer.op_type in _NARROW_OPS and str(value.name) not in known

    def suspect(value: ir.Value | None) -> bool:
        """Whether what makes a loud tensor from `value` may have got it that loud."""
        producer = value.producer() if value is not None else None
        if value is None or producer is None or not unknown(value) or producer.op_type in _RECORDED_OPS:
            return False
        return producer.op_type not in _BOUNDED_OPS or any(map(suspect, producer.inputs))

    def follows(value: ir.Value) -> bool:
        """Whether `value`, computed from a loud tensor, must be taken for loud as well."""
        producer = value.producer()
        return unknown(value) and producer is not None and producer.op_type != "MatMul"

    too_large = [value for value in model.graph.initializers.values() if not _fits(value)]
    pending = [
        output
        for node in model.graph
        for output in node.outputs
        if not known.get(str(output.name), 0.0) <= FP16_SAFE  # also true for NaN
    ]
    pending += [
        output
        for value in too_large
        for node in graphs.users(value)
        for output in node.outputs
        if unknown(output)
    ]
    found = dict.fromkeys(too_large)
    while pending:
        value = pending.pop()
        producer = value.producer()
        if value in found or producer is None:
            continue
        found[value] = None
        pending += [source for source in producer.inputs if source is not None and suspect(source)]
        pending += [output for node in graphs.users(value) for output in node.outputs if follows(output)]
    return found


def _fits(value: ir.Value) -> bool:
    """Whether fp16 holds every number of a constant. True for NaN and infinity, which no type makes better."""
    if value.const_value is None or value.dtype is None or value.dtype.name != "FLOAT":
        return True
    numbers = value.const_value.numpy()
    return not FP16_MAX < max(numbers.max(initial=0.0), -numbers.min(initial=0.0)) < np.inf


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

        output = ir.Value(name=name, shape=rewrite.copied_shape(value), type=ir.TensorType(dtype))
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
        if not np.isfinite(numbers).all():
            raise ArtifactError(
                f"the weight {value.name} is not finite: the checkpoint is damaged, or its training diverged; "
                "export a sound one with  svtool export SOURCE"
            )
        name = str(value.name)
        if all(use.node in self._narrow for use in value.uses()):
            del self._graph.initializers[name]
        else:
            name = f"{name}/fp16"
        return rewrite.register(self._graph, name, numbers.astype(np.float16))


def _short(dtype: ir.DataType) -> str:
    return "fp16" if dtype.name == "FLOAT16" else "fp32"


def _last_dim(value: ir.Value) -> int | None:
    size = value.shape[-1] if value.shape is not None else None
    return size if isinstance(size, int) else None
