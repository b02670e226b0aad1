from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import small_graph
from graph_runs import linear_ranges, run
from svtool import graph as graphs
from svtool import layers, precision, quantize
from svtool.errors import ArtifactError, UsageError


@pytest.fixture(scope="module")
def model() -> ir.Model:
    return ir.from_proto(small_graph.make())


@pytest.fixture(scope="module")
def ranges(model: ir.Model) -> dict[str, float]:
    return linear_ranges(model)


@pytest.fixture(scope="module")
def int8(model: ir.Model, ranges: dict[str, float]) -> ir.Model:
    return quantize.to_int8(precision.to_fp16(model), ranges)


@pytest.mark.case("Q15")
def test_int8_touches_linear_layers_only(model: ir.Model, int8: ir.Model) -> None:
    ops = Counter(node.op_type for node in int8.graph)
    layers = [linear for linear in graphs.linears(model) if not linear.head]
    assert ops["QuantizeLinear"] == len(layers) == 12
    assert ops["DequantizeLinear"] == 2 * len(layers)
    weights = [name for name, value in int8.graph.initializers.items() if value.dtype is ir.DataType.INT8]
    assert sum(name.endswith("/int8") for name in weights) == len(layers)
    assert int8.opset_imports[""] == 19
    for node in int8.graph:
        if node.op_type == "QuantizeLinear":
            users = {use.node.op_type for use in node.outputs[0].uses()}
            targets = {use.node.op_type for use in graphs.users(node.outputs[0])[0].outputs[0].uses()}
            assert (users, targets) == ({"DequantizeLinear"}, {"MatMul"})
    reached = graphs.after_linears(precision.to_fp16(model))
    assert not any("mask" in str(node.name) for node in int8.graph if "QuantizeLinear" in node.op_type)
    assert reached


def test_int8_weights_are_per_column_and_close(model: ir.Model, int8: ir.Model) -> None:
    layer = next(graphs.linears(model))
    weight = layer.node.inputs[1]
    assert weight is not None
    original = weight.const_value.numpy()  # type: ignore[union-attr]
    stored = int8.graph.initializers
    whole = stored[f"{weight.name}/int8"].const_value.numpy()  # type: ignore[union-attr]
    steps = stored[f"{weight.name}/scales"].const_value.numpy().astype(np.float32)  # type: ignore[union-attr]
    assert steps.shape == (original.shape[1],)
    assert np.abs(whole.astype(int)).max() <= 127
    assert (np.abs(whole * steps - original) <= 0.51 * steps + 1e-3 * np.abs(original)).all()


def shared_input_model() -> ir.Model:
    """Two linears that read one activation; one weight column is all zeros."""
    kernel = np.eye(3, 4, dtype=np.float32)  # the last column is zero
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("MatMul", ["r", "a"], ["p"])]
    nodes += [helper.make_node("MatMul", ["r", "b"], ["q"]), helper.make_node("Add", ["p", "q"], ["y"])]
    info = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
        for name, size in (("x", 3), ("y", 4))
    ]
    weights = [numpy_helper.from_array(kernel, name) for name in "ab"]
    graph = helper.make_graph(nodes, "shared", info[:1], info[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return ir.from_proto(onnx.shape_inference.infer_shapes(model))


def test_one_quantizer_serves_all_readers_and_zero_columns_stay_zero() -> None:
    quantized = quantize.to_int8(shared_input_model(), {"r": 2.0})
    assert Counter(node.op_type for node in quantized.graph)["QuantizeLinear"] == 1
    found = run(quantized, {"x": np.array([[1, -1, 2]], np.float32)})[0]
    np.testing.assert_allclose(found, [[2, 0, 4, 0]], atol=0.03)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0, -1.0])
def test_unusable_ranges_are_refused_by_name(model: ir.Model, ranges: dict[str, float], bad: float) -> None:
    name = list(ranges)[3]
    with pytest.raises(ArtifactError, match=f"'{name}', the input of encoder.encoders0.0.feed_forward.w_2"):
        quantize.to_int8(model, ranges | {name: bad})


def test_a_missing_range_names_the_layer(model: ir.Model, ranges: dict[str, float]) -> None:
    short = {name: value for name, value in ranges.items() if "tp_encoders" not in name}
    with pytest.raises(ArtifactError, match=r"no range for .* the input of encoder\.tp_encoders\.0"):
        quantize.to_int8(model, short)


def test_a_scale_that_fp16_rounds_to_zero_is_refused(model: ir.Model, ranges: dict[str, float]) -> None:
    half = precision.to_fp16(model)
    with pytest.raises(ArtifactError, match="not a usable float16"):
        quantize.to_int8(half, ranges | {next(iter(ranges)): 1e-9})


def test_exact_layers_can_be_chosen(model: ir.Model, ranges: dict[str, float]) -> None:
    chosen = [name for name in layers.quantizable(model) if name.endswith("w_1")]
    quantized = quantize.to_int8(model, ranges, layers=chosen)
    kept = {linear.name for linear in graphs.linears(quantized)}
    assert kept == {linear.name for linear in graphs.linears(model)} - set(chosen)
    with pytest.raises(UsageError, match=r"1 names are no linear layers .* 'w_3'"):
        quantize.to_int8(model, ranges, layers=[*chosen, "w_3"])
    with pytest.raises(UsageError, match="no linear layer is left"):
        quantize.to_int8(model, ranges, layers=[])


def test_old_opsets_are_refused_with_the_next_command(ranges: dict[str, float]) -> None:
    model = ir.from_proto(small_graph.make())
    model.opset_imports[""] = 16
    with pytest.raises(ArtifactError, match="svtool export --opset 18"):
        quantize.to_int8(model, ranges)
