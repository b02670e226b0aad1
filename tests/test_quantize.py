from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import small_graph
from graph_runs import as_bytes, linear_ranges, run, sqnr_db
from svtool import graph as graphs
from svtool import layers, parity, precision, quantize, smooth
from svtool.child import run_child
from svtool.config import Profile
from svtool.errors import ArtifactError, UsageError
from svtool.profiles import profile_shapes
from svtool.progress import Silent

QDQ = ("QuantizeLinear", "DequantizeLinear")


def scale_type(node: ir.Node) -> str:
    scale = node.inputs[1]
    assert scale is not None
    assert scale.dtype is not None
    return scale.dtype.name


def scale_types(model: ir.Model) -> set[str]:
    return {scale_type(node) for node in model.graph if node.op_type in QDQ}


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


def test_scales_have_the_type_of_what_they_scale(int8: ir.Model, ranges: dict[str, float]) -> None:
    """fp16 in the fp16 graph, which opset 19 allows; float32 around a layer that fp16 cannot hold."""
    assert int8.opset_imports[""] == 19
    assert scale_types(int8) == {"FLOAT16"}
    assert {node.version for node in int8.graph} <= {None, 19}
    layer = "encoder.encoders.0.feed_forward.w_2"
    loud = precision.to_fp16(ir.from_proto(small_graph.make()), {f"{layer}.product": 1e5})
    mixed = quantize.to_int8(loud, ranges)
    wide = {str(node.name) for node in mixed.graph if node.op_type in QDQ and scale_type(node) == "FLOAT"}
    # the product is float32, and with it what both of its operands are restored to
    assert sum("dq@" in name for name in wide) == 1
    assert all("encoders.0.feed_forward.w_2" in name or "encoders.0.relu" in name for name in wide)
    feed = parity.make_feed(23, (20, 7))
    assert sqnr_db(run(int8, feed)[0], run(mixed, feed)[0]) > 35


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
    with pytest.raises(ArtifactError, match="svtool export SOURCE --opset 18"):
        quantize.to_int8(model, ranges)


def test_infinite_weights_are_refused_with_the_next_command(ranges: dict[str, float]) -> None:
    proto = small_graph.make()
    weight = next(one for one in proto.graph.initializer if one.name.endswith("encoders.0.feed_forward.w_1"))
    numbers = numpy_helper.to_array(weight).copy()
    numbers[3, 5] = np.inf
    weight.CopyFrom(numpy_helper.from_array(numbers, weight.name))
    with pytest.raises(ArtifactError, match=r"encoders\.0\.feed_forward\.w_1 is not finite: .*svtool export"):
        quantize.to_int8(ir.from_proto(proto), ranges)


@pytest.mark.case("Q17")
def test_weight_only_int8_of_the_embedded_model_loads_and_runs(tiny_model: Path, tmp_path: Path) -> None:
    model = graphs.load_model(tiny_model)
    quantized = quantize.to_int8_weights(precision.to_fp16(model))
    names = layers.quantizable(model)
    ops = Counter(node.op_type for node in quantized.graph)
    assert (ops["QuantizeLinear"], ops["DequantizeLinear"]) == (0, len(names))
    assert quantized.opset_imports[""] == 19
    assert {linear.name for linear in graphs.linears(quantized)} == {"ctc.ctc_lo"}
    path = tmp_path / "twin.onnx"
    graphs.save_model(quantized, path)
    onnx.checker.check_model(str(path), full_check=True)
    measured = parity.compare(tiny_model, path, threads=1)
    assert measured.sqnr_db > 30
    small, full = path.stat().st_size, tiny_model.stat().st_size
    assert small < 0.4 * full
    kept = dict(model.metadata_props) | {graphs.PRECISION_KEY: "int8-weights"}
    assert quantized.metadata_props == kept


@pytest.mark.parametrize("on", ["float32", "fp16"])
def test_weight_only_int8_is_closer_than_full_int8(
    model: ir.Model, int8: ir.Model, ranges: dict[str, float], on: str
) -> None:
    base = precision.to_fp16(model) if on == "fp16" else model
    feed = parity.make_feed(40, (40, 40), seed=2)
    wanted = run(model, feed)[0]
    weights = sqnr_db(wanted, run(quantize.to_int8_weights(base), feed)[0])
    assert weights > sqnr_db(wanted, run(quantize.to_int8(base, ranges), feed)[0]) + 1


def test_weight_only_int8_builds_as_a_plan(model: ir.Model, tmp_path: Path) -> None:
    """The real TensorRT-RTX, which must keep every weight's dequantization."""
    pytest.importorskip("tensorrt_rtx")
    half = precision.to_fp16(model)
    quantized = precision.add_greedy_head(quantize.to_int8_weights(half), small_graph.TAGS)
    graphs.save_model(quantized, tmp_path / "graph.onnx")
    job = {
        "flavor": "rtx",
        "graph": str(tmp_path / "graph.onnx"),
        "plan": str(tmp_path / "engine.plan"),
        "profiles": [profile_shapes(Profile(2, 3))],
        "profile_text": "2:3",
        "workspace_mb": None,
        "expected": {"QuantizeLinear": 0, "DequantizeLinear": 12, "both": 0, "weights": 12},
        "estimate_s": 2.0,
        "timing_cache": None,
    }
    report = run_child("plan:engine", job, Silent()).value
    assert report["int8_products"] == {"both": 0, "weights": 12}
    assert report["requested"]["DEQUANTIZE"] == {"HALF": 12}
    assert (tmp_path / "engine.plan").stat().st_size > 10_000


def chains(model: ir.Model, ranges: dict[str, float]) -> dict[str, Callable[[], ir.Model]]:
    factors = {"encoder.encoders.0.relu": [index % 5 - 2 for index in range(small_graph.UNITS)]}
    smoothed = {name: 8 * value for name, value in ranges.items()}
    return {
        "smooth": lambda: smooth.smooth(model, factors),
        "fp16": lambda: precision.to_fp16(smooth.smooth(model, factors)),
        "int8": lambda: quantize.to_int8(precision.to_fp16(smooth.smooth(model, factors)), smoothed),
        "int8-weights": lambda: quantize.to_int8_weights(precision.to_fp16(model)),
        "greedy": lambda: precision.add_greedy_head(
            quantize.to_int8_weights(precision.to_fp16(model)), small_graph.TAGS
        ),
    }


@pytest.mark.parametrize("kind", ["smooth", "fp16", "int8", "int8-weights", "greedy"])
def test_every_chain_is_deterministic_and_keeps_metadata_and_symbolic_axes(
    model: ir.Model, ranges: dict[str, float], kind: str
) -> None:
    before = as_bytes(model)
    make = chains(model, ranges)[kind]
    made = make()
    assert as_bytes(made) == as_bytes(make())
    assert as_bytes(model) == before
    assert made.metadata_props.items() >= model.metadata_props.items()
    values = {str(value.name): value for value in (*made.graph.inputs, *made.graph.outputs)}
    for name, axes in graphs.AXES.items():
        if name in values:
            found = values[name].shape
            assert found is not None
            assert [str(size) for size in found[: len(axes)]] == list(axes)
    if kind == "greedy":
        assert [str(size) for size in values["token_ids"].shape or ()] == list(graphs.AXES[graphs.LOGITS])


def test_nothing_is_quantized_twice(model: ir.Model, ranges: dict[str, float]) -> None:
    once = [
        quantize.to_int8_weights(model),
        quantize.to_int8(model, ranges, layers=[layers.quantizable(model)[0]]),
    ]
    for made in once:
        with pytest.raises(ArtifactError, match="quantized already"):
            quantize.to_int8_weights(made)
        with pytest.raises(ArtifactError, match="quantized already"):
            quantize.to_int8(made, ranges)
        with pytest.raises(ArtifactError, match="quantized already"):
            precision.to_fp16(made)
