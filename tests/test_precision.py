from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import small_graph
from graph_runs import as_bytes, linear_ranges, run, run_half, sqnr_db
from svtool import graph as graphs
from svtool import parity, precision, quantize
from svtool.backends import greedy_head
from svtool.errors import ArtifactError
from svtool.ranges import Sample, largest

BLOCK = "encoder.encoders.0"


def planted(constant: str, factor: float) -> ir.Model:
    """The small graph with one constant made huge."""
    proto = small_graph.make()
    weight = next(one for one in proto.graph.initializer if one.name == constant)
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(factor), constant))
    return ir.from_proto(proto)


def node_types(model: ir.Model, op: str, index: int = 0) -> set[str]:
    found = (node.inputs[index] for node in model.graph if node.op_type == op)
    return {value.dtype.name for value in found if value is not None and value.dtype is not None}


@pytest.fixture(scope="module")
def model() -> ir.Model:
    return ir.from_proto(small_graph.make())


@pytest.fixture(scope="module")
def ranges(model: ir.Model) -> dict[str, float]:
    return linear_ranges(model)


@pytest.fixture(scope="module")
def int8(model: ir.Model, ranges: dict[str, float]) -> ir.Model:
    return quantize.to_int8(precision.to_fp16(model), ranges)


@pytest.mark.case("Q17")
@pytest.mark.parametrize(("kind", "least_db"), [("fp16", 55), ("int8", 25)])
def test_passes_load_run_and_keep_the_contract(
    model: ir.Model, int8: ir.Model, kind: str, least_db: float, tmp_path: Path
) -> None:
    rewritten = precision.to_fp16(model) if kind == "fp16" else int8
    path = tmp_path / "twin.onnx"
    graphs.save_model(rewritten, path)
    onnx.checker.check_model(str(path), full_check=True)
    for name, (dtype, _) in (graphs.INPUTS | graphs.OUTPUTS).items():
        values = [*rewritten.graph.inputs, *rewritten.graph.outputs]
        value = next(value for value in values if value.name == name)
        before = next(v for v in (*model.graph.inputs, *model.graph.outputs) if v.name == name)
        assert value.dtype is not None
        assert value.dtype.name == dtype
        assert str(value.shape) == str(before.shape)
    feed = parity.make_feed(23, (20, 7))
    wanted, found = run(model, feed), run(rewritten, feed)
    assert [array.dtype for array in found] == [np.float32, np.int32]
    assert list(found[1]) == [24, 11]
    assert np.isfinite(found[0]).all()
    assert sqnr_db(wanted[0], found[0]) > least_db
    assert rewritten.metadata_props["comment"] == "small"
    assert rewritten.metadata_props[graphs.PRECISION_KEY] == kind


def test_nodes_stay_in_topological_order(int8: ir.Model) -> None:
    known = {value.name for value in int8.graph.inputs} | set(int8.graph.initializers)
    for node in int8.graph:
        assert {value.name for value in node.inputs if value is not None} <= known
        known |= {value.name for value in node.outputs}


def test_float32_islands(model: ir.Model) -> None:
    half = precision.to_fp16(model)
    assert node_types(half, "LayerNormalization") == {"FLOAT"}
    assert node_types(half, "Softmax") == {"FLOAT"}
    assert node_types(half, "MatMul") == node_types(half, "MatMul", 1) == {"FLOAT16"}
    assert node_types(half, "Conv") == {"FLOAT16"}
    front = [
        node.outputs[0] for node in half.graph if node.op_type in {"Sin", "Cos", "Gather", "Where", "Range"}
    ]
    assert {value.dtype.name for value in front if value.dtype is not None} == {"FLOAT", "INT64"}
    assert half.graph.initializers["input_scale"].dtype is ir.DataType.FLOAT


def test_residual_adds_follow_the_recorded_ranges(model: ir.Model) -> None:
    adds = [str(node.outputs[0].name) for node in graphs.residual_adds(model)]
    inner = [name for name in adds if name != "x"]

    def wide(recorded: dict[str, float] | None) -> list[str]:
        after = precision.to_fp16(model, recorded)
        types = {str(output.name): output.dtype for node in after.graph for output in node.outputs}
        return [name for name in inner if types[name] is ir.DataType.FLOAT]

    assert wide(None) == inner  # nobody measured them
    assert wide(dict.fromkeys(adds, 100.0)) == []
    loud = dict.fromkeys(adds, 100.0) | {inner[1]: precision.FP16_SAFE + 1}
    assert inner[1] in wide(loud)
    assert inner[-1] not in wide(loud)
    assert wide(dict.fromkeys(adds, 100.0) | {inner[2]: float("nan")})


@pytest.mark.case("B6")
@pytest.mark.parametrize(
    ("measured", "constant", "factor"),
    [
        ("speech", f"val_{BLOCK}.self_attn.linear_q_k_v", 3e4),
        ("noise", f"{BLOCK}.self_attn.linear_q_k_v.bias", 1e6),
        ("speech", f"val_{BLOCK}.self_attn.linear_out", 1e5),
        ("noise", f"val_{BLOCK}.feed_forward.w_1", 3e4),
        ("speech", f"{BLOCK}.feed_forward.w_1.bias", 5e5),
        ("noise", f"val_{BLOCK}.feed_forward.w_2", 1e5),
        ("speech", f"{BLOCK}.self_attn.fsmn_block.weight", 1.5e5),
        ("noise", f"{BLOCK}.self_attn.fsmn_block.weight", 1e6),
        ("speech", f"{BLOCK}.norm1.weight", 3e4),
        ("noise", f"{BLOCK}.norm2.bias", 1e6),
        ("speech", "val_ctc.ctc_lo", 1e5),
        ("noise", "ctc.ctc_lo.bias", 1e7),
    ],
)
def test_one_huge_constant_anywhere_stays_finite_and_close(
    measured: str, constant: str, factor: float, tmp_path: Path
) -> None:
    """Whatever fp16 cannot hold stays float32 with all that makes it and all that reads it."""
    model = planted(constant, factor)
    path = tmp_path / "model.onnx"
    graphs.save_model(model, path)
    samples = [Sample("noise", parity.make_feed(40, (40,), seed)["speech"][0], 3, 14) for seed in range(3)]
    recorded = largest(path, samples)
    if measured == "noise":  # what a build without recordings knows
        recorded = {name: value for name, value in recorded.items() if value > precision.FP16_SAFE}
    half = precision.to_fp16(model, recorded)
    feed = parity.make_feed(23, (20, 7))
    wanted = run(model, feed)[0]
    (logits, _), inner = run_half(half, feed)
    assert len(inner) > 20  # the other blocks are fp16
    assert [name for name, array in inner.items() if not np.isfinite(array).all()] == []
    assert np.isfinite(logits).all()
    # attention this sharp picks single frames, and any rounding in front may tip the choice
    assert sqnr_db(wanted, logits) > (20 if "norm1" in constant else 45)


@pytest.mark.case("B6")
def test_without_ranges_a_loud_layer_overflows(tmp_path: Path) -> None:
    """What the test above guards against does happen in these graphs."""
    model = planted(f"{BLOCK}.self_attn.fsmn_block.weight", 1.5e5)
    inner = run_half(precision.to_fp16(model), parity.make_feed(23, (20, 7)))[1]
    assert any(np.isinf(array).any() for array in inner.values())


@pytest.mark.case("B6")
@pytest.mark.parametrize(("gain", "lengths"), [(0.0, (64, 6)), (1e-4, (64, 0)), (30.0, (64, 6))])
def test_silent_loud_and_padded_inputs_are_finite_everywhere(
    model: ir.Model, int8: ir.Model, gain: float, lengths: tuple[int, ...]
) -> None:
    feed = parity.make_feed(64, lengths)
    feed["speech"] *= np.float32(gain)
    wanted = run(model, feed)[0]
    for rewritten, least_db in ((precision.to_fp16(model), 50), (int8, 15)):
        (logits, _), inner = run_half(rewritten, feed)
        assert all(np.isfinite(array).all() for array in (logits, *inner.values()))
        for row, length in enumerate(lengths):
            assert sqnr_db(wanted[row, : length + 4], logits[row, : length + 4]) > least_db


def test_a_layer_can_be_kept_in_float32(model: ir.Model) -> None:
    kept = precision.to_fp16(model, keep_fp32=["ctc.*"])
    types = {linear.name: linear.node.inputs[1].dtype.name for linear in graphs.linears(kept)}  # type: ignore[union-attr]
    assert types.pop("ctc.ctc_lo") == "FLOAT"
    assert set(types.values()) == {"FLOAT16"}


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_weights_that_are_not_finite_are_refused_by_name(bad: float) -> None:
    with pytest.raises(ArtifactError, match=r"w_1\.bias is not finite: .*svtool export"):
        precision.to_fp16(planted(f"{BLOCK}.feed_forward.w_1.bias", bad))


def test_passes_are_deterministic_and_leave_their_argument_alone(
    model: ir.Model, ranges: dict[str, float]
) -> None:
    before = as_bytes(model)
    results = []
    for _ in range(2):
        half = precision.to_fp16(model)
        kept = as_bytes(half)
        quantized = quantize.to_int8(half, ranges)
        greedy = precision.add_greedy_head(quantized, small_graph.TAGS)
        assert as_bytes(half) == kept
        results.append([kept, as_bytes(quantized), as_bytes(greedy)])
    assert results[0] == results[1]
    assert as_bytes(model) == before


def test_second_application_is_refused(model: ir.Model, int8: ir.Model, ranges: dict[str, float]) -> None:
    with pytest.raises(ArtifactError, match="FLOAT16 already"):
        precision.to_fp16(precision.to_fp16(model))
    with pytest.raises(ArtifactError, match="quantized already"):
        quantize.to_int8(int8, ranges)
    with pytest.raises(ArtifactError, match="quantized already"):
        precision.to_fp16(int8)
    with pytest.raises(ArtifactError, match="no ctc_logits"):
        precision.add_greedy_head(precision.add_greedy_head(model, [1]), [1])


def test_greedy_head_equals_numpy(model: ir.Model) -> None:
    greedy = precision.add_greedy_head(model, small_graph.TAGS)
    assert [value.name for value in greedy.graph.outputs] == [
        "token_ids",
        "token_logprobs",
        "tag_logits",
        "encoder_out_lens",
    ]
    assert graphs.tag_ids(greedy) == small_graph.TAGS
    feed = parity.make_feed(19, (19, 4, 11))
    logits, lengths = run(model, feed)
    wanted = greedy_head(logits, lengths, small_graph.TAGS)
    ids, logprobs, tags, lens = run(greedy, feed)
    assert ids.dtype == lens.dtype == np.int32
    for item, length in enumerate(lengths):  # padded frames are never read
        np.testing.assert_array_equal(ids[item, :length], wanted.token_ids[item, :length])
        np.testing.assert_allclose(logprobs[item, :length], wanted.token_logprobs[item, :length], atol=1e-5)
    np.testing.assert_array_equal(tags, wanted.tag_logits)
    np.testing.assert_array_equal(lens, lengths)
    with pytest.raises(ArtifactError, match="do not fit a vocabulary of 40"):
        precision.add_greedy_head(model, [3, 40])


@pytest.mark.case("B1")
@pytest.mark.parametrize("kind", ["fp16", "int8"])
def test_any_ragged_lengths_run(model: ir.Model, int8: ir.Model, kind: str) -> None:
    """No length equals the time axis; every utterance alone gives what it gives in the batch."""
    rewritten = precision.to_fp16(model) if kind == "fp16" else int8
    lengths = (6, 30, 31, 40)
    feed = parity.make_feed(256, lengths)
    logits, lens = run(rewritten, feed)
    assert list(lens) == [10, 34, 35, 44]
    assert np.isfinite(logits).all()
    for item, length in enumerate(lengths):
        alone = {name: array[item : item + 1] for name, array in feed.items()} | {
            "speech": feed["speech"][item : item + 1, :length]
        }
        one = run(rewritten, alone)[0][0]
        np.testing.assert_allclose(one, logits[item, : length + 4], atol=0.03)


@pytest.mark.case("B12")
@pytest.mark.parametrize("kind", ["fp16", "int8"])
def test_boundary_shapes_are_finite(model: ir.Model, int8: ir.Model, kind: str) -> None:
    rewritten = precision.to_fp16(model) if kind == "fp16" else int8
    for batch, frames in ((1, 1), (8, 512), (1, 4096)):
        logits, lens = run(rewritten, parity.make_feed(frames, (frames,) * batch))
        assert logits.shape == (batch, frames + 4, small_graph.VOCABULARY)
        assert np.isfinite(logits).all()
        assert list(lens) == [frames + 4] * batch


@pytest.mark.case("Q5")
def test_dynamically_quantized_models_are_refused(tmp_path: Path, ranges: dict[str, float]) -> None:
    proto = small_graph.make()
    proto.graph.node.append(helper.make_node("DynamicQuantizeLinear", ["x"], ["x_q", "x_s", "x_z"]))
    path = tmp_path / "model_quant.onnx"
    onnx.save(proto, path)
    with pytest.raises(ArtifactError, match=r"DynamicQuantizeLinear.*svtool export.*svtool build-trt"):
        graphs.check_contract(graphs.load_model(path), path)
    with pytest.raises(ArtifactError, match="DynamicQuantizeLinear"):
        quantize.to_int8(ir.from_proto(proto), ranges)


def test_foreign_graphs_are_refused(tmp_path: Path) -> None:
    def refused(change: Any, words: str) -> None:
        proto = small_graph.make()
        change(proto)
        path = tmp_path / "model.onnx"
        onnx.save(proto, path)
        with pytest.raises(ArtifactError, match=words):
            graphs.check_contract(graphs.load_model(path), path)

    def set_dim(tensor: int, axis: int, value: int) -> Any:
        return lambda proto: setattr(
            proto.graph.input[tensor].type.tensor_type.shape.dim[axis], "dim_value", value
        )

    refused(set_dim(0, 2, 80), "width 80, expected 560")
    refused(set_dim(0, 0, 2), "fixed shape")
    refused(set_dim(1, 0, 2), "fixed shape")
    refused(lambda proto: proto.graph.output.pop(), "has the outputs ctc_logits, expected")
    refused(
        lambda proto: setattr(proto.graph.input[1].type.tensor_type, "elem_type", 7), "is INT64 of rank 1"
    )
    (tmp_path / "model.onnx").write_bytes(b"not a protobuf at all")
    with pytest.raises(ArtifactError, match="is a text file"):
        graphs.load_model(tmp_path / "model.onnx")
    with pytest.raises(ArtifactError, match="does not exist: make it with"):
        graphs.load_model(tmp_path / "absent.onnx")


def test_digest_counts_what_is_computed_and_nothing_else() -> None:
    first = graphs.model_digest(ir.from_proto(small_graph.make()))
    proto = small_graph.make()
    proto.doc_string = "other words"
    proto.producer_name = "somebody"
    proto.graph.initializer.reverse()
    helper.set_model_props(proto, {"comment": "other"})
    del proto.graph.value_info[:]
    assert graphs.model_digest(ir.from_proto(proto)) == first
    weight = next(w for w in proto.graph.initializer if w.name == "rates")
    changed = numpy_helper.to_array(weight).copy()
    changed[0, 0] += 1e-6
    weight.CopyFrom(numpy_helper.from_array(changed, "rates"))
    assert graphs.model_digest(ir.from_proto(proto)) != first
    other = small_graph.make()
    other.graph.node[-1].op_type = "Sub"
    assert graphs.model_digest(ir.from_proto(other)) != first


def test_models_without_value_infos_are_typed_by_inference() -> None:
    proto = small_graph.make()
    del proto.graph.value_info[:]
    bare = precision.to_fp16(ir.from_proto(proto))
    assert node_types(bare, "MatMul") == {"FLOAT16"}
