"""The piecewise writer gives protobuf's own bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from svtool import graph as graphs


def small_model(weights: int, columns: int = 3) -> onnx.ModelProto:
    """A chain of MatMuls with everything around the graph that a writer could lose or move."""
    rng = np.random.default_rng(7)
    names = [f"w{number}" for number in range(weights)]
    initializers = [
        numpy_helper.from_array(rng.standard_normal((columns, columns)).astype(np.float32), name)
        for name in names
    ]
    nodes, value = [], "x"
    for name in names:
        nodes.append(helper.make_node("MatMul", [value, name], [f"{name}_out"], name=f"node_{name}"))
        value = f"{name}_out"
    nodes.append(helper.make_node("Identity", [value], ["y"]))
    shape = ["batch", columns]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        initializers,
        doc_string="a graph",
        value_info=[helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, shape) for name in names],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], producer_name="test")
    model.ir_version = 10
    helper.set_model_props(model, {"vocab_size": "7", "comment": "é"})
    return model


@pytest.mark.parametrize("weights", [0, 1, 40])
def test_bytes_are_protobufs(weights: int, tmp_path: Path) -> None:
    model = onnx_ir.from_proto(small_model(weights))
    wanted = onnx_ir.to_proto(model).SerializeToString(deterministic=True)
    assert graphs.to_bytes(model) == wanted
    graphs.save_model(model, tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_bytes() == wanted
    onnx.checker.check_model(str(tmp_path / "model.onnx"), full_check=True)


def test_lengths_need_several_bytes() -> None:
    model = onnx_ir.from_proto(small_model(2, columns=200))  # 160 kB each: three bytes of length
    assert graphs.to_bytes(model) == onnx_ir.to_proto(model).SerializeToString(deterministic=True)


def test_weights_beside_the_file_are_written_inside(tmp_path: Path) -> None:
    proto = small_model(3, columns=32)
    onnx.save(
        proto,
        tmp_path / "split.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    model = graphs.load_model(tmp_path / "split.onnx")
    graphs.save_model(model, tmp_path / "whole.onnx")
    whole = onnx.load(tmp_path / "whole.onnx", load_external_data=False)
    assert [one.data_location for one in whole.graph.initializer] == [TensorProto.DEFAULT] * 3
    for one, two in zip(whole.graph.initializer, small_model(3, columns=32).graph.initializer, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(one), numpy_helper.to_array(two))


def test_the_model_is_not_changed() -> None:
    model = onnx_ir.from_proto(small_model(2))
    before = {name: value.const_value for name, value in model.graph.initializers.items()}
    graphs.to_bytes(model)
    assert {name: value.const_value for name, value in model.graph.initializers.items()} == before
