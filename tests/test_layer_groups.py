from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import small_graph
from svtool import graph as graphs
from svtool import layers
from svtool.errors import UsageError
from svtool.source import read_source


@pytest.fixture(scope="module")
def model() -> ir.Model:
    return ir.from_proto(small_graph.make())


def chain(names: list[str]) -> ir.Model:
    """One linear after another; the last one makes the logits."""
    nodes, weights, source = [], [], "x"
    for index, name in enumerate([*names, "ctc.ctc_lo"]):
        output = graphs.LOGITS if index == len(names) else f"t{index}"
        weights += [
            numpy_helper.from_array(np.eye(2, dtype=np.float32), f"{name}.weight"),
        ]
        nodes.append(helper.make_node("MatMul", [source, f"{name}.weight"], [output], name=f"n{index}"))
        source = output
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in ("x", graphs.LOGITS))
    graph = helper.make_graph(nodes, "chain", [x], [y], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return ir.from_proto(onnx.shape_inference.infer_shapes(made))


def full_size() -> ir.Model:
    """The layer names of SenseVoice Small: 1 + 49 + 20 blocks."""
    stacks = [("encoders0", 1), ("encoders", 49), ("tp_encoders", 20)]
    kinds = ("self_attn.linear_q_k_v", "self_attn.linear_out", "feed_forward.w_1", "feed_forward.w_2")
    return chain(
        [f"encoder.{stack}.{i}.{kind}" for stack, count in stacks for i in range(count) for kind in kinds]
    )


def test_full_size_groups_are_even_named_and_in_graph_order() -> None:
    model = full_size()
    groups = layers.layer_groups(model)
    assert len(groups) == 24
    assert {len(group.layers) for group in groups} == {11, 12}
    assert [group.name for group in groups][:5] == [
        "linear_q_k_v: encoder.encoders0.0 to encoder.encoders.9",
        "linear_out: encoder.encoders0.0 to encoder.encoders.9",
        "w_1: encoder.encoders0.0 to encoder.encoders.9",
        "w_2: encoder.encoders0.0 to encoder.encoders.9",
        "linear_q_k_v: encoder.encoders.10-21",
    ]
    firsts = [layers.quantizable(model).index(group.layers[0]) for group in groups]
    assert firsts == sorted(firsts)


def test_groups_of_one_layer_bear_its_name(model: ir.Model) -> None:
    groups = layers.layer_groups(model)
    assert tuple(group.name for group in groups) == layers.quantizable(model)
    shapes = {linear.name: linear.shape for linear in graphs.linears(model)}
    assert groups[0].macs == 560 * 96 == shapes[groups[0].name][0] * shapes[groups[0].name][1]


def test_layers_left_out_are_in_no_group() -> None:
    model = full_size()
    pinned = layers.match(model, ["*.encoders.1?.*.linear_out", "*.tp_encoders.3.*", "ctc.*"])
    groups = layers.layer_groups(model, leave_out=pinned)
    kept = [name for name in layers.quantizable(model) if name not in pinned]
    assert sorted(name for group in groups for name in group.layers) == sorted(kept)
    assert len(groups) == 24
    assert sum(group.macs for group in groups) == 4 * len(kept)
    assert layers.layer_groups(model, leave_out=layers.quantizable(model)) == ()


def test_kind_groups(model: ir.Model) -> None:
    found = {group.name: len(group.layers) for group in layers.kind_groups(model)}
    assert found == {"linear_q_k_v": 3, "linear_out": 3, "w_1": 3, "w_2": 3}


KINDS = st.sampled_from(["a", "b", "c.d", "w_1", "w_2"])


@settings(deadline=None, max_examples=40)
@given(blocks=st.lists(st.lists(KINDS, unique=True, max_size=4), max_size=9), most=st.integers(1, 12))
def test_groups_part_the_layers_without_their_head(blocks: list[list[str]], most: int) -> None:
    names = [f"s.{index}.{kind}" for index, block in enumerate(blocks) for kind in block]
    model = chain(names)
    groups = layers.layer_groups(model, most=most)
    assert len(groups) <= most
    assert sorted(name for group in groups for name in group.layers) == sorted(names)
    assert sum(group.macs for group in groups) == 4 * len(names)
    assert len({group.name for group in groups}) == len(groups)
    for group in groups:
        assert [name for name in names if name in group.layers] == list(group.layers)


def test_int8_share_counts_the_head_in_the_whole(model: ir.Model) -> None:
    macs = {linear.name: linear.shape[0] * linear.shape[1] for linear in graphs.linears(model)}
    head = macs["ctc.ctc_lo"]
    every = layers.int8_share(model, layers.quantizable(model))
    assert every == pytest.approx(1 - head / sum(macs.values()))
    assert layers.int8_share(model, []) == 0
    assert layers.int8_share(model, list(macs)) == 1
    with pytest.raises(UsageError, match="'w_9'"):
        layers.int8_share(model, ["w_9"])


def test_patterns_name_layers_or_are_refused(model: ir.Model) -> None:
    found = layers.match(model, ["*.linear_out", "ctc.*"])
    assert found[-1] == "ctc.ctc_lo"
    assert len(found) == 4
    assert layers.match(model, []) == ()
    with pytest.raises(UsageError, match=r"'\*\.w_3' matches no layer"):
        layers.match(model, ["*.w_1", "*.w_3"])
    with pytest.raises(UsageError, match="at least one"):
        layers.layer_groups(model, most=0)


def test_a_source_counts_what_stays_out_of_int8(tmp_path: Path) -> None:
    path = small_graph.write(tmp_path / "model.onnx")
    free, kept = read_source(path), read_source(path, keep=["*.w_2", "ctc.*"])
    assert (free.pinned, len(free.groups), free.other_macs) == ((), 12, 32 * 40)
    assert [name.rsplit(".", 1)[1] for name in kept.pinned] == ["w_2", "w_2", "w_2", "ctc_lo"]
    assert not any(name in kept.pinned for group in kept.groups for name in group.layers)
    assert kept.other_macs == 32 * 40 + 3 * 48 * 32  # the logits layer counted once
    with pytest.raises(UsageError, match=r"'\*\.w_3' matches no layer"):
        read_source(path, keep=["*.w_3"])
