"""What `simplify` asks of a result, on graphs damaged by hand; the command's other rules are in test_simplify.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import small_graph
from svtool import graph as graphs
from svtool.errors import ArtifactError
from svtool.export import SWEEP, TRACED
from svtool.parity import SHAPES
from svtool.simplify import Unsound, check, name_axes, symbols


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_graph.write(tmp_path_factory.mktemp("graph") / "model.onnx")


def same(model: onnx.ModelProto) -> None:
    pass


def fixed_time(model: onnx.ModelProto) -> None:
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 41


def more_nodes(model: onnx.ModelProto) -> None:
    model.graph.node.insert(0, helper.make_node("Identity", ["language"], ["unused"]))


def hidden_linear(model: onnx.ModelProto) -> None:
    """Equal numbers, but no MatMul that quantization could find; onnxsim's own fusion does it with Gemm."""
    product = next(node for node in model.graph.node if node.output[0] == "ctc.ctc_lo.product")
    inputs, outputs = list(product.input), list(product.output)
    product.CopyFrom(helper.make_node("Einsum", inputs, outputs, equation="btk,kv->btv"))


def other_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 19


def other_type(model: onnx.ModelProto) -> None:
    model.graph.input[2].type.tensor_type.elem_type = TensorProto.INT64


def not_finite(model: onnx.ModelProto) -> None:
    bias = next(one for one in model.graph.initializer if one.name == "ctc.ctc_lo.bias")
    bias.CopyFrom(numpy_helper.from_array(np.full(list(bias.dims), np.nan, np.float32), bias.name))


@pytest.mark.case("S1", "S6")
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (fixed_time, r"lost the symbolic axes ctc_logits\[1\]"),
        (more_nodes, "more nodes"),
        (hidden_linear, r"lost 1 linear layers, first ctc\.ctc_lo"),
        (other_opset, "opset"),
        (other_type, "names or types"),
        (not_finite, "not finite"),
    ],
)
def test_a_damaged_graph_is_turned_down(
    original: Path, tmp_path: Path, damage: Callable[[onnx.ModelProto], None], said: str
) -> None:
    candidate = onnx.load(original)
    damage(candidate)
    path = tmp_path / "candidate.onnx"
    onnx.save(candidate, path)
    with pytest.raises((Unsound, ArtifactError), match=said):
        check(graphs.load_model(original), original, path)


@pytest.mark.case("S6")
def test_an_equal_graph_is_accepted_and_the_shapes_are_told(original: Path, tmp_path: Path) -> None:
    path = tmp_path / "candidate.onnx"
    path.write_bytes(original.read_bytes())
    _, parity = check(graphs.load_model(original), original, path)
    assert parity.max_abs == 0
    assert len(parity.shapes) >= 3


@pytest.mark.case("S6", "E1")
def test_no_check_runs_a_traced_size_and_one_has_padding() -> None:
    shapes = [(len(lengths), frames) for frames, lengths in SHAPES]
    assert all(TRACED[0] != batch and TRACED[1] != frames for batch, frames in (*shapes, *SWEEP))
    assert any(length < frames for frames, lengths in SHAPES for length in lengths)


@pytest.mark.case("S5")
def test_axes_of_unknown_tensors_are_named_after_them() -> None:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [-1, 4, 0])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [value], [out])
    model = onnx_ir.serde.deserialize_model(helper.make_model(graph))
    assert symbols(model) == set()
    assert name_axes(model)
    assert symbols(model) == {"x[0]", "x[2]"}
    assert not name_axes(model)
