"""onnxsim's result is used only when nothing was lost; whatever else happens, the model stays as it was."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest

import child_modules
import small_graph
from svtool import graph, parity, simplify
from svtool.backends.onnxrt import open_session
from svtool.errors import ArtifactError
from svtool.export import SWEEP, TRACED
from svtool.progress import Silent

# what a simplifier may do in its process
PROBE = """
import os, shutil, sys, time
import numpy as np

def change(payload, work):
    import onnx
    model = onnx.load(payload["model"])
    work(model.graph)
    onnx.save(model, payload["target"])
    return {}

def abort(payload, progress):
    shutil.copy(payload["model"], payload["target"])
    print("double free or corruption", file=sys.stderr, flush=True)
    os.abort()

def sleep(payload, progress):
    time.sleep(600)

def nothing(payload, progress):
    return {}

def garbage(payload, progress):
    open(payload["target"], "wb").write(b"no protobuf")
    return {}

def fail(payload, progress):
    raise ValueError("Message onnx.ModelProto exceeds maximum protobuf size of 2GB")

def same(payload, progress):
    return change(payload, lambda graph: None)

def expressions(payload, progress):
    def work(graph):
        graph.output[0].type.tensor_type.shape.dim[1].dim_param = "4 + feats_length"
        graph.input[0].type.tensor_type.shape.dim[0].dim_param = "unk__0"
    return change(payload, work)

def scale_a_weight(payload, progress):
    def work(graph):
        from onnx import numpy_helper
        weight = next(one for one in graph.initializer if one.name.startswith("val_encoder.encoders.0.feed"))
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(1.01), weight.name))
    return change(payload, work)

def without_library(payload, progress):
    sys.modules["onnxsim"] = None
    from svtool.simplify import worker
    return worker(payload, progress)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return small_graph.write(tmp_path / "model.onnx")


@pytest.fixture
def attempt(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., simplify.Simplified]:
    """Simplify `model` with a worker of the probe module."""
    folder = tmp_path / "probe"
    folder.mkdir()
    child_modules.add(PROBE, folder, monkeypatch)

    def run(worker: str, limit_s: float = 60.0) -> simplify.Simplified:
        return simplify.simplify(model, Silent(), worker=f"probe:{worker}", limit_s=limit_s)

    return run


def axes(path: Path) -> dict[str, list[str | int]]:
    found = onnx.load(path, load_external_data=False).graph
    return {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*found.input, *found.output)
    }


def props(model: onnx.ModelProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in model.metadata_props}


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


@pytest.fixture(scope="module")
def simplified(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, simplify.Simplified]:
    """The original, the real onnxsim's result, and the report."""
    folder = tmp_path_factory.mktemp("simplify")
    original = folder / "original.onnx"
    proto = small_graph.make()
    # constants that can be folded, and a node that does nothing
    nodes = proto.graph.node
    nodes.insert(0, onnx.helper.make_node("Add", ["one", "one"], ["two"], name="foldable"))
    nodes.insert(1, onnx.helper.make_node("Add", ["two", "two"], ["folded_four"], name="foldable_too"))
    for node in nodes:
        if node.output[0] == "total_1":
            node.input[1] = "folded_four"
    onnx.save(proto, original)
    path = folder / "model.onnx"
    path.write_bytes(original.read_bytes())
    return original, path, simplify.simplify(path, Silent())


def test_constants_are_folded(simplified: tuple[Path, Path, simplify.Simplified]) -> None:
    _, path, report = simplified
    assert report.kept, report.reason
    assert report.reason is None
    assert report.nodes_before is not None
    assert report.nodes_after is not None
    assert report.nodes_after < report.nodes_before
    assert report.nodes_after == len(graph.load_model(path).graph)


@pytest.mark.case("S1")
def test_another_batch_and_length_run_after_simplifying(
    simplified: tuple[Path, Path, simplify.Simplified],
) -> None:
    original, path, _ = simplified
    feed = parity.make_feed(171, [171, 60, 1])
    wanted, found = (parity.run(open_session(one), one, feed) for one in (original, path))
    assert found[0].shape == (3, 175, small_graph.VOCABULARY)
    np.testing.assert_allclose(found[0], wanted[0], atol=1e-5)
    np.testing.assert_array_equal(found[1], [175, 64, 5])


@pytest.mark.case("S7", "S1")
def test_axis_names_and_metadata_stay(simplified: tuple[Path, Path, simplify.Simplified]) -> None:
    original, path, _ = simplified
    assert axes(path) == axes(original)
    before, after = (onnx.load(one) for one in (original, path))
    assert props(before) == props(after)
    assert before.ir_version == after.ir_version
    assert list(before.opset_import) == list(after.opset_import)


def test_the_linears_stay_matmuls(simplified: tuple[Path, Path, simplify.Simplified]) -> None:
    original, path, _ = simplified
    before, after = (graph.load_model(one) for one in (original, path))
    assert [one.name for one in graph.linears(after)] == [one.name for one in graph.linears(before)]
    assert not [node for node in after.graph if node.op_type == "Gemm"]


@pytest.mark.case("S2")
def test_a_native_crash_keeps_the_model(attempt: Callable[..., simplify.Simplified], model: Path) -> None:
    before = model.read_bytes()
    report = attempt("abort")
    assert not report.kept
    assert "signal 6" in str(report.reason)
    assert "\n" not in str(report.reason)
    assert model.read_bytes() == before
    assert files(model.parent) == [model.name]


def test_a_simplifier_that_hangs_is_ended(attempt: Callable[..., simplify.Simplified], model: Path) -> None:
    report = attempt("sleep", limit_s=1.0)
    assert not report.kept
    assert report.reason == "onnxsim took longer than 1 s"
    assert files(model.parent) == [model.name]


@pytest.mark.case("S2", "S3", "S5", "S6")
@pytest.mark.parametrize(
    ("worker", "said"),
    [
        ("nothing", "does not exist"),
        ("garbage", "is a text file"),
        ("fail", "exceeds maximum protobuf size"),
        ("without_library", "pip install -e '.[export]'"),
        ("scale_a_weight", "outputs differ (SQNR"),
    ],
)
def test_a_failed_or_wrong_simplifier_is_told_and_not_used(
    attempt: Callable[..., simplify.Simplified], model: Path, worker: str, said: str
) -> None:
    before = model.read_bytes()
    report = attempt(worker)
    assert not report.kept
    assert said in str(report.reason)
    assert "\n" not in str(report.reason)
    assert model.read_bytes() == before
    assert files(model.parent) == [model.name]


def constant(proto: onnx.ModelProto, name: str, change: Callable[[Any], Any]) -> None:
    for item in proto.graph.initializer:
        if item.name == name:
            item.CopyFrom(onnx.numpy_helper.from_array(change(onnx.numpy_helper.to_array(item)), name))


def fixed_batch(proto: onnx.ModelProto) -> None:
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 2


def no_shape(proto: onnx.ModelProto) -> None:
    proto.graph.output[0].type.tensor_type.ClearField("shape")


def baked_length(proto: onnx.ModelProto) -> None:
    constant(proto, "flat_shape", lambda _: np.array([0, 41, small_graph.WIDTH], np.int64))


def baked_mask(proto: onnx.ModelProto) -> None:
    """Every frame counts as heard, whatever the lengths: right for full batches only."""
    for node in proto.graph.node:
        if node.output[0] == "lengths64":
            node.op_type, node.input[0] = "Add", "big"
            node.input.append("big")
            del node.attribute[:]
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([[10000]], np.int64), "big"))


def renamed_output(proto: onnx.ModelProto) -> None:
    proto.graph.output[1].name = "lengths_column"


def lost_output(proto: onnx.ModelProto) -> None:
    proto.graph.output.pop()


@pytest.mark.case("S1", "S6", "S7")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (fixed_batch, r"lost the symbolic axes ctc_logits\[0\]"),
        (no_shape, r"lost the symbolic axes ctc_logits\[0\], ctc_logits\[1\]$"),
        (baked_length, "does not run on features"),
        (baked_mask, "outputs differ"),
        (renamed_output, "names or types"),
        (lost_output, "names or types"),
    ],
)
def test_unsound_results_are_turned_down(
    model: Path, tmp_path: Path, change: Callable[[onnx.ModelProto], None], said: str
) -> None:
    proto = onnx.load(model)
    change(proto)
    changed = tmp_path / "changed.onnx"
    onnx.save(proto, changed)
    with pytest.raises((simplify.Unsound, ArtifactError), match=said):
        simplify.check(graph.load_model(model), model, changed)


@pytest.mark.case("S7")
def test_expressions_become_the_names_again(attempt: Callable[..., simplify.Simplified], model: Path) -> None:
    wanted = axes(model)
    report = attempt("expressions")
    assert report.kept, report.reason
    assert axes(model) == wanted


def without_names(path: Path, size: int | None) -> onnx.ModelProto:
    """The dynamic axes written as `size`, or as nothing."""
    proto = onnx.load(path)
    for value in (*proto.graph.input, *proto.graph.output):
        dims = value.type.tensor_type.shape.dim
        for dim in dims[: 2 if len(dims) == 3 else 1]:
            dim.Clear()
            if size is not None:
                dim.dim_value = size
    del proto.graph.value_info[:]
    return proto


@pytest.mark.case("S5")
def test_a_model_with_axes_of_minus_one_is_simplified_with_names(
    attempt: Callable[..., simplify.Simplified], model: Path
) -> None:
    wanted = axes(model)
    onnx.save(without_names(model, -1), model)
    report = attempt("same")
    assert report.kept, report.reason
    assert axes(model) == wanted
    assert files(model.parent) == [model.name]


@pytest.mark.case("S5")
@pytest.mark.parametrize("size", [-1, 0, None])
def test_axes_written_as_a_number_or_nothing_get_names(model: Path, tmp_path: Path, size: int | None) -> None:
    wanted = axes(model)
    onnx.save(without_names(model, size), tmp_path / "broken.onnx")
    loaded = graph.load_model(tmp_path / "broken.onnx")
    assert simplify.name_axes(loaded)
    graph.save_model(loaded, tmp_path / "named.onnx")
    assert axes(tmp_path / "named.onnx") == wanted
    assert not simplify.name_axes(graph.load_model(model))


@pytest.mark.case("S3")
def test_a_file_above_two_gigabytes_is_judged_by_its_size(model: Path) -> None:
    os.truncate(model, 2**31 + 1)  # sparse: takes no disk
    report = simplify.simplify(model, Silent())
    assert not report.kept
    assert "2 GB" in str(report.reason)
    assert model.stat().st_size == 2**31 + 1


@pytest.mark.case("S3")
def test_weights_above_two_gigabytes_beside_the_file_count_too(model: Path) -> None:
    proto = onnx.load(model)
    rows = 2**30
    padding = onnx.TensorProto(name="padding", data_type=onnx.TensorProto.FLOAT, dims=[rows])
    padding.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "padding.bin"), ("offset", "0"), ("length", str(4 * rows))):
        padding.external_data.add(key=key, value=value)
    proto.graph.initializer.append(padding)
    model.write_bytes(proto.SerializeToString())
    (model.parent / "padding.bin").touch()
    os.truncate(model.parent / "padding.bin", 4 * rows)  # sparse
    report = simplify.simplify(model, Silent())
    assert not report.kept
    assert "2 GB" in str(report.reason)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_graph.write(tmp_path_factory.mktemp("graph") / "model.onnx")


def fixed_time(model: onnx.ModelProto) -> None:
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 41


def more_nodes(model: onnx.ModelProto) -> None:
    model.graph.node.insert(0, onnx.helper.make_node("Identity", ["language"], ["unused"]))


def hidden_linear(model: onnx.ModelProto) -> None:
    """Equal numbers, but no MatMul that quantization could find; onnxsim's own fusion does it with Gemm."""
    product = next(node for node in model.graph.node if node.output[0] == "ctc.ctc_lo.product")
    inputs, outputs = list(product.input), list(product.output)
    product.CopyFrom(onnx.helper.make_node("Einsum", inputs, outputs, equation="btk,kv->btv"))


def other_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 19


def other_type(model: onnx.ModelProto) -> None:
    model.graph.input[2].type.tensor_type.elem_type = onnx.TensorProto.INT64


def not_finite(model: onnx.ModelProto) -> None:
    bias = next(one for one in model.graph.initializer if one.name == "ctc.ctc_lo.bias")
    bias.CopyFrom(onnx.numpy_helper.from_array(np.full(list(bias.dims), np.nan, np.float32), bias.name))


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
def test_damage_by_hand_is_turned_down(
    original: Path, tmp_path: Path, damage: Callable[[onnx.ModelProto], None], said: str
) -> None:
    candidate = onnx.load(original)
    damage(candidate)
    path = tmp_path / "candidate.onnx"
    onnx.save(candidate, path)
    with pytest.raises((simplify.Unsound, ArtifactError), match=said):
        simplify.check(graph.load_model(original), original, path)


@pytest.mark.case("S6")
def test_an_equal_graph_is_accepted_and_the_shapes_are_told(original: Path, tmp_path: Path) -> None:
    path = tmp_path / "candidate.onnx"
    path.write_bytes(original.read_bytes())
    _, measured = simplify.check(graph.load_model(original), original, path)
    assert measured.max_abs == 0
    assert len(measured.shapes) >= 3


@pytest.mark.case("S6", "E1")
def test_no_check_runs_a_traced_size_and_one_has_padding() -> None:
    shapes = [(len(lengths), frames) for frames, lengths in parity.SHAPES]
    assert all(TRACED[0] != batch and TRACED[1] != frames for batch, frames in (*shapes, *SWEEP))
    assert any(length < frames for frames, lengths in parity.SHAPES for length in lengths)


@pytest.mark.case("S5")
def test_axes_of_unknown_tensors_are_named_after_them() -> None:
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [-1, 4, 0])
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    made = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [value], [out])
    model = onnx_ir.serde.deserialize_model(onnx.helper.make_model(made))
    assert simplify.symbols(model) == set()
    assert simplify.name_axes(model)
    assert simplify.symbols(model) == {"x[0]", "x[2]"}
    assert not simplify.name_axes(model)
