from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import small_graph
from graph_runs import as_bytes, linear_ranges, recorded, run
from svtool import graph as graphs
from svtool import parity, precision, quantize, smooth
from svtool.errors import ArtifactError, UsageError
from svtool.sqnr import sqnr_db

BLOCKS = ("encoder.encoders0.0", "encoder.encoders.0", "encoder.tp_encoders.0")
Maxima = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def model() -> ir.Model:
    return ir.from_proto(small_graph.make())


def planted() -> ir.Model:
    """Some channels of every norm and every inner layer are 60 times louder, their weight rows as much smaller."""
    proto = small_graph.make()
    arrays = {one.name: one for one in proto.graph.initializer}

    def scale(name: str, index: Any, factor: float) -> None:
        numbers = numpy_helper.to_array(arrays[name]).copy()
        numbers[index] *= np.float32(factor)
        arrays[name].CopyFrom(numpy_helper.from_array(numbers, name))

    for block in BLOCKS:
        for norm, layer in (("norm1", "self_attn.linear_q_k_v"), ("norm2", "feed_forward.w_1")):
            for constant in ("weight", "bias"):
                scale(f"{block}.{norm}.{constant}", slice(3, 6), 60)
            scale(f"val_{block}.{layer}", slice(3, 6), 1 / 60)
        scale(f"val_{block}.feed_forward.w_1", (slice(None), slice(7, 9)), 60)
        scale(f"{block}.feed_forward.w_1.bias", slice(7, 9), 60)
        scale(f"val_{block}.feed_forward.w_2", slice(7, 9), 1 / 60)
    return ir.from_proto(proto)


def channel_maxima(model: ir.Model) -> Maxima:
    found = recorded(model, list(smooth.foldable(model)))
    return {name: np.abs(array).reshape(-1, array.shape[-1]).max(axis=0) for name, array in found.items()}


def assert_same_bits(one: ir.Model, two: ir.Model) -> None:
    for frames, lengths in (*parity.SHAPES, (64, (64, 64, 1, 9))):
        feed = parity.make_feed(frames, lengths)
        for a, b in zip(run(one, feed), run(two, feed), strict=True):
            np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


def test_folds_are_where_one_tensor_feeds_linear_layers_alone(model: ir.Model) -> None:
    found = smooth.foldable(model)
    wanted = {f"{block}.{name}": size for block in BLOCKS for name, size in
              (("norm1.out", 32), ("norm2.out", 32), ("relu", small_graph.UNITS))}  # fmt: skip
    assert found == wanted | {"encoder.encoders0.0.norm1.out": 560}
    assert not any("attn" in name or "tp_norm" in name or "after_norm" in name for name in found)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_outputs_keep_their_bits(alpha: float) -> None:
    model = planted()
    factors = smooth.exponents(model, channel_maxima(model), alpha)
    assert any(min(row) < 0 < max(row) for row in factors.values())
    folded = smooth.smooth(model, factors)
    assert_same_bits(model, folded)
    assert graphs.model_digest(model) != graphs.model_digest(folded)
    assert folded.metadata_props["comment"] == "small"
    assert [str(value.shape) for value in folded.graph.outputs] == [
        str(value.shape) for value in model.graph.outputs
    ]
    before, after = (
        [(one.name, one.source, one.shape) for one in graphs.linears(m)] for m in (model, folded)
    )
    assert before == after


@settings(deadline=None, max_examples=12)
@given(seed=st.integers(0, 1000), spread=st.floats(0, 60), alpha=st.floats(0, 1))
def test_any_maxima_give_factors_that_fold_exactly(
    model: ir.Model, seed: int, spread: float, alpha: float
) -> None:
    rng = np.random.default_rng(seed)
    maxima = {name: np.exp2(rng.normal(0, spread, size)) for name, size in smooth.foldable(model).items()}
    for row in maxima.values():
        row[rng.random(len(row)) < 0.1] = 0
    factors = smooth.exponents(model, maxima, alpha)
    for name, row in factors.items():
        assert all(factor == 0 for factor, largest in zip(row, maxima[name], strict=True) if largest == 0)
        assert max(map(abs, row)) <= smooth.MOST
    folded = smooth.smooth(model, factors)
    feed = parity.make_feed(9, (9, 3))
    np.testing.assert_array_equal(run(model, feed)[0], run(folded, feed)[0])
    for linear in graphs.linears(folded):
        weight = linear.node.inputs[1].const_value.numpy()  # type: ignore[union-attr]
        assert np.abs(weight).max() <= precision.FP16_SAFE
    precision.to_fp16(folded)


def test_factors_balance_what_was_planted() -> None:
    model = planted()
    factors = smooth.exponents(model, channel_maxima(model), 0.5)
    for block in BLOCKS:
        for source, loud in (("norm1.out", [3, 4, 5]), ("norm2.out", [3, 4, 5]), ("relu", [7, 8])):
            row = factors[f"{block}.{source}"]
            assert all(4 <= row[channel] <= 8 for channel in loud)  # log2 60 is 5.9
            assert sorted(row)[len(row) // 2] == 0


def test_smoothing_raises_the_sqnr_of_int8_where_channels_are_loud() -> None:
    model = planted()
    folded = smooth.smooth(model, smooth.exponents(model, channel_maxima(model), 0.5))
    feed = parity.make_feed(80, (80, 80), seed=3)
    wanted = run(model, feed)[0]

    def measured(one: ir.Model) -> float:
        found = sqnr_db(wanted, run(quantize.to_int8(one, linear_ranges(one)), feed)[0])
        assert found is not None
        return found

    plain, smoothed = measured(model), measured(folded)
    assert plain < 20
    assert smoothed > plain + 8
    half = quantize.to_int8(precision.to_fp16(folded), linear_ranges(folded))
    twin = sqnr_db(wanted, run(half, feed)[0])
    assert twin is not None
    assert abs(twin - smoothed) < 1.5


def changed(kind: str) -> ir.Model:
    """The small graph with one more reader, or a shared constant, at a place that would fold otherwise."""
    proto = small_graph.make()
    graph = proto.graph
    block = BLOCKS[1]
    nodes = {name: node for node in graph.node for name in node.output}
    match kind:
        case "norm read twice":
            nodes[f"{block}.out"].input[0] = f"{block}.norm2.out"
        case "bias read twice":
            nodes[f"{block}.out"].input[0] = f"{block}.feed_forward.w_2.out"
            nodes[f"{block}.feed_forward.w_2.out"].input[1] = f"{BLOCKS[2]}.feed_forward.w_2.bias"
            nodes[f"{BLOCKS[2]}.feed_forward.w_1.out"].input[1] = f"{block}.feed_forward.w_1.bias"
        case "weight read twice":
            nodes[f"{BLOCKS[2]}.feed_forward.w_1.product"].input[1] = f"val_{block}.feed_forward.w_1"
        case "inner layer is an output":
            graph.output.append(helper.make_tensor_value_info(f"{block}.feed_forward.w_1.out", 1, None))
        case "norms share their vectors":
            for name, other in (("norm1", "norm2"), ("norm2", "norm2")):
                for index, constant in ((1, "weight"), (2, "bias")):
                    nodes[f"{BLOCKS[2]}.{name}.out"].input[index] = f"{block}.{other}.{constant}"
            nodes[f"{block}.norm1.out"].input[2] = f"{block}.norm1.weight"
    return ir.from_proto(proto)


@pytest.mark.parametrize(
    ("kind", "lost"),
    [
        ("norm read twice", {f"{BLOCKS[1]}.norm2.out"}),
        ("bias read twice", {f"{BLOCKS[1]}.relu", f"{BLOCKS[2]}.relu"}),
        (
            "weight read twice",
            {f"{block}.{name}" for block in BLOCKS[1:] for name in ("norm2.out", "relu")},
        ),
        ("inner layer is an output", {f"{BLOCKS[1]}.relu"}),
        ("norms share their vectors", set()),
    ],
)
def test_what_feeds_something_else_is_not_folded(model: ir.Model, kind: str, lost: set[str]) -> None:
    other = changed(kind)
    assert smooth.foldable(model).keys() - smooth.foldable(other).keys() == lost
    rng = np.random.default_rng(5)
    factors = {name: rng.integers(-4, 5, size).tolist() for name, size in smooth.foldable(other).items()}
    assert_same_bits(other, smooth.smooth(other, factors))


def test_pure_deterministic_and_once_only(model: ir.Model) -> None:
    before = as_bytes(model)
    factors = smooth.exponents(model, channel_maxima(model), 0.7)
    results = [as_bytes(smooth.smooth(model, factors)) for _ in range(2)]
    assert results[0] == results[1]
    assert as_bytes(model) == before
    with pytest.raises(ArtifactError, match="smoothed already"):
        smooth.smooth(smooth.smooth(model, factors), factors)
    with pytest.raises(ArtifactError, match="FLOAT16 already"):
        smooth.smooth(precision.to_fp16(model), {})
    with pytest.raises(ArtifactError, match="quantized already"):
        smooth.smooth(quantize.to_int8_weights(model), {})


@pytest.mark.parametrize(
    ("factors", "words"),
    [
        ({"x": [0] * 560}, "no fold exists at the tensor 'x'"),
        ({"encoder.encoders.0.relu": [0] * 3}, r"the factors \[3\] .* are not 48 whole exponents"),
        ({"encoder.encoders.0.relu": [0.5] * 48}, "are not 48 whole exponents"),
        ({"encoder.encoders.0.relu": [100] * 48}, "within 24"),
    ],
)
def test_factors_that_do_not_fit_are_refused(model: ir.Model, factors: Any, words: str) -> None:
    with pytest.raises(ArtifactError, match=words):
        smooth.smooth(model, factors)


def test_factors_that_leave_the_normal_range_are_refused() -> None:
    proto = small_graph.make()
    weight = next(one for one in proto.graph.initializer if one.name == f"{BLOCKS[1]}.norm2.weight")
    weight.CopyFrom(numpy_helper.from_array(np.full(32, 1e-36, np.float32), weight.name))
    model = ir.from_proto(proto)
    with pytest.raises(ArtifactError, match=r"norm2\.weight out of float32's normal range"):
        smooth.smooth(model, {f"{BLOCKS[1]}.norm2.out": [10] * 32})
    maxima = {name: np.ones(size) for name, size in smooth.foldable(model).items()}
    maxima[f"{BLOCKS[1]}.norm2.out"] = np.exp2(np.linspace(-30, 30, 32))
    smooth.smooth(model, smooth.exponents(model, maxima, 1.0))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_unusable_maxima_are_refused(model: ir.Model, bad: float) -> None:
    maxima = {name: np.ones(size) for name, size in smooth.foldable(model).items()}
    name = f"{BLOCKS[1]}.relu"
    maxima[name][3] = bad
    with pytest.raises(ArtifactError, match=rf"maxima \[48\] of '{name}' are not 48 finite"):
        smooth.exponents(model, maxima, 0.5)
    with pytest.raises(ArtifactError, match=rf"maxima \[2\] of '{name}'"):
        smooth.exponents(model, maxima | {name: np.ones(2)}, 0.5)
    del maxima[name]
    with pytest.raises(ArtifactError, match="svtool calibrate"):
        smooth.exponents(model, maxima, 0.5)
    with pytest.raises(UsageError, match="is not within 0 and 1"):
        smooth.exponents(model, maxima, bad)


def test_the_embedded_model_keeps_its_bits(tiny_model: Any) -> None:
    model = graphs.load_model(tiny_model)
    assert len(smooth.foldable(model)) == 21
    factors = smooth.exponents(model, channel_maxima(model), 0.5)
    assert any(factor for row in factors.values() for factor in row)
    assert_same_bits(model, smooth.smooth(model, factors))
