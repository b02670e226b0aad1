"""`svtool inspect`: every kind of artifact, foreign graphs, damage, and a page that reads at any width."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import small_graph
from svtool import inspect, manifest, onnxfacts
from svtool.build_ranges import COMMITTED
from svtool.cli import app
from svtool.errors import ArtifactError
from svtool.inspect_page import render
from svtool.onnxfacts import read_facts

runner = CliRunner()


def look(path: Path, code: int = 0) -> dict[str, Any]:
    result = runner.invoke(app, ["inspect", str(path), "--json"])
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["schema"] == "svtool.inspect/1"
    return found


def text_of(path: Path, width: int = 100) -> str:
    """The page on one line, so that a line break cannot hide what is looked for."""
    return " ".join(render(inspect.inspect(path), width).plain.split())


def plan(folder: Path, **facts: Any) -> Path:
    path = folder / "int8.plan"
    path.write_bytes(b"plan bytes")
    (folder / "int8.onnx").write_bytes(b"twin bytes")
    described = {
        "kind": "engine",
        "runtime": "tensorrt_rtx",
        "precision": "int8",
        "head": "greedy",
        "model": "model.onnx",
        "onnx_digest": "a" * 64,
        "twin": "int8.onnx",
        "twin_sha256": manifest.sha256_file(folder / "int8.onnx"),
        "source": {"name": "sensevoice", "files": {"model.pt": "c" * 64}},
        "compute_capability": "portable",
        "built_with": {"tensorrt_rtx": flavor_version()},
        "profiles": [{"batch": 8, "seconds": 30.0, "estimated_bytes": 3 << 30, "shapes": {}}],
        "precision_map": {"int8": ["one", "two"], "fp16": ["three"]},
        "int8_share": 0.91,
        "calibration": {"list_name": "calib.jsonl", "list_digest": "d" * 64, "method": "entropy", "used": 70},
        "parity": {"sqnr_db": 34.5, "argmax_agreement": 99.5},
        "verified_on_gpu": False,
    }
    manifest.write_manifest(path, described | facts)
    return path


def flavor_version() -> str:
    from svtool.probes import installed

    return installed("tensorrt-rtx-cu12") or "1.7"


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """Not SenseVoice, with fixed axes."""
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    out = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 4])
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["logits"])], "g", [value], [out], [weight]
    )
    path = tmp_path / "foreign.onnx"
    onnx.save(helper.make_model(graph, producer_name="elsewhere", ir_version=9), path)
    return path


# --- graphs --------------------------------------------------------------------------------------


def test_a_model_says_contract_provenance_and_the_next_command(tiny_model: Path) -> None:
    found = look(tiny_model)
    assert found["kind"] == "model"
    assert found["graph"]["contract"] == {"runs": True, "problems": [], "builds": True, "build_problem": None}
    assert found["graph"]["inputs"]["speech"] == "float32 [batch_size, feats_length, 560]"
    assert (found["precision"], found["graph"]["linears"]) == ("fp32", {"fp32": 29})
    assert found["graph"]["ir_version"] == 10
    assert found["manifest"]["source"]["name"] == "tiny"
    assert found["problems"] == found["warnings"] == []
    assert found["next"][0] == f"svtool build-trt {tiny_model} --int8"


@pytest.mark.case("E12")
def test_exports_that_differ_in_options_are_told_apart(tiny_model: Path, tmp_path: Path) -> None:
    """Options and checkpoint stand in the file itself: with and without its manifest they are printed."""
    described = manifest.read_manifest(tiny_model)
    alone = tmp_path / "model.onnx"
    shutil.copy(tiny_model, alone)
    checkpoint = described["source"]["files"]["model.pt"][:16]
    for path in (tiny_model, alone):
        text = text_of(path)
        assert checkpoint in text
        assert "device cpu" in text
        assert "exporter torch.onnx dynamo" in text
    other = onnx.load(tiny_model)
    next(one for one in other.metadata_props if one.key == "svtool.export.device").value = "cuda"
    onnx.save(other, alone)
    assert "device cuda" in text_of(alone)
    assert "manifest model.onnx.json is missing" in text_of(alone)


def test_the_precision_of_a_twin_is_counted_in_its_graph(tiny_int8: Path) -> None:
    twin = tiny_int8.with_suffix(".onnx")
    found = look(twin)
    assert (found["kind"], found["precision"]) == ("twin", "int8")
    assert found["graph"]["linears"] == {"fp16": 1, "int8": 28}
    assert found["int8_share"] == pytest.approx(0.965, abs=0.001)
    assert found["graph"]["contract"]["runs"]
    assert not found["graph"]["contract"]["builds"]
    described = manifest.read_manifest(tiny_int8)
    assert found["manifest"]["parity"] == described["parity"]
    assert f"SQNR {described['parity']['sqnr_db']:.1f} dB" in text_of(twin)


def test_int8_that_the_graph_does_not_have_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "int8.onnx"
    onnx.save(small_graph.make(), path)
    manifest.write_manifest(path, {"kind": "engine", "runtime": "onnxruntime", "precision": "int8"})
    found = look(path)
    assert found["precision"] == "fp32"
    assert "its manifest says int8, its graph is fp32" in found["warnings"]


def test_foreign_onnx_is_told_which_point_it_does_not_meet(foreign: Path) -> None:
    found = look(foreign)
    assert found["kind"] == "foreign-onnx"
    contract = found["graph"]["contract"]
    assert not contract["runs"]
    assert not contract["builds"]
    assert any(
        "it takes x, expected speech, speech_lengths, language, textnorm" in one
        for one in contract["problems"]
    )
    assert any("it gives logits" in one for one in contract["problems"])
    assert found["graph"]["producer"] == "elsewhere"
    assert "svtool export" in found["next"][0]


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        (
            "speech",
            lambda value: value.type.tensor_type.shape.dim[0].__setattr__("dim_value", 1),
            "fixed batch or time",
        ),
        (
            "speech",
            lambda value: value.type.tensor_type.shape.dim[2].__setattr__("dim_value", 80),
            "width 80",
        ),
        ("speech", lambda value: value.type.tensor_type.__setattr__("elem_type", 10), "speech is FLOAT16"),
        ("language", lambda value: value.type.tensor_type.__setattr__("elem_type", 7), "language is INT64"),
        (
            "language",
            lambda value: value.__setattr__("name", "lang"),
            "it takes speech, speech_lengths, lang",
        ),
    ],
)
def test_each_point_of_the_contract(tmp_path: Path, name: str, change: Any, problem: str) -> None:
    model = small_graph.make()
    value = next(one for one in model.graph.input if one.name == name)
    change(value)
    path = tmp_path / "changed.onnx"
    path.write_bytes(model.SerializeToString())
    facts = read_facts(path)
    assert any(problem in one for one in facts.runs_problems), facts.runs_problems


def test_a_dynamically_quantized_graph_is_named(tmp_path: Path) -> None:
    model = small_graph.make()
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1].startswith("val_"):
            node.op_type = "MatMulInteger"
    path = tmp_path / "model_quant.onnx"
    path.write_bytes(model.SerializeToString())
    found = look(path)
    assert (found["precision"], found["graph"]["dynamic_quantization"]) == ("int8-dynamic", True)
    assert any("TensorRT cannot build it" in one for one in found["warnings"])
    assert "dynamically quantized model" in found["graph"]["contract"]["build_problem"]


@pytest.mark.parametrize("activation", [True, False])
def test_weights_behind_other_nodes_are_counted_by_how_they_are_stored(
    tmp_path: Path, activation: bool
) -> None:
    """int8 through DequantizeLinear, Cast and Transpose; a weight in a Constant node; a Gemm."""
    weights = [
        numpy_helper.from_array(np.ones((4, 4), np.int8), "w8"),
        numpy_helper.from_array(np.float32(0.1), "scale"),
        numpy_helper.from_array(np.ones((4, 4), np.float16), "w16"),
    ]
    constant = helper.make_node(
        "Constant", [], ["wc"], value=numpy_helper.from_array(np.ones((4, 2), np.float32))
    )
    source = "dq" if activation else "x"
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale"], ["q"], output_dtype=TensorProto.INT8),
        helper.make_node("DequantizeLinear", ["q", "scale"], ["dq"]),
        helper.make_node("DequantizeLinear", ["w8", "scale"], ["w"]),
        helper.make_node("Transpose", ["w"], ["wt"]),
        helper.make_node("MatMul", [source, "wt"], ["a"]),
        helper.make_node("Cast", ["w16"], ["w32"], to=TensorProto.FLOAT),
        helper.make_node("Gemm", ["a", "w32"], ["b"]),
        constant,
        helper.make_node("MatMul", ["b", "wc"], ["y"]),
        helper.make_node("MatMul", ["a", "b"], ["scores"]),
    ]
    values = [helper.make_tensor_value_info(one, TensorProto.FLOAT, ["n", 4]) for one in ("x", "y", "scores")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    path = tmp_path / "mixed.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    facts = read_facts(path)
    kind = "int8" if activation else "int8-weights"
    assert facts.linears == {"fp16": 1, "fp32": 1, kind: 1}
    assert facts.precision == kind
    assert facts.int8_share == pytest.approx(16 / 40)


def test_weights_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(small_graph.make(), path, save_as_external_data=True, location="weights.bin", size_threshold=64)
    found = look(path)
    assert found["graph"]["external"] == {"files": ["weights.bin"], "missing": [], "outside": []}
    assert found["graph"]["contract"]["builds"]
    (tmp_path / "weights.bin").unlink()
    found = look(path, code=1)
    assert "weights.bin, which is not beside it" in found["problems"][0]


# --- plans ---------------------------------------------------------------------------------------


def test_a_plan_is_described_from_its_manifest(tmp_path: Path) -> None:
    found = look(plan(tmp_path))
    assert (found["kind"], found["precision"], found["int8_share"]) == ("plan", "int8", 0.91)
    assert found["graph"] is None
    text = text_of(tmp_path / "int8.plan")
    for part in (
        "8:30 up to 8 utterances of 30 s, about 3.0 GiB of GPU memory",
        "int8 share 91.0 %",
        "map int8 2: one, two",
        "entropy",
        "calib.jsonl",
        "SQNR 34.5 dB",
        "has not been run on a GPU yet",
        "run on a GPU no",
        f"svtool transcribe FILE -m {tmp_path / 'int8.onnx'}",
        f"svtool verify {tmp_path / 'int8.plan'}",
        "--data LIST",
    ):
        assert part in text, part


def test_a_real_plan_names_its_profiles_and_memory(tiny_int8: Path) -> None:
    text = text_of(tiny_int8)
    assert "(as its manifest says)" in text
    assert "memory not estimated" not in text
    assert "MiB of GPU memory per context" in text
    assert "map int8 28:" in text
    assert "tensorrt_rtx" in text


def test_a_plan_without_its_manifest_says_that_nothing_is_known(tmp_path: Path) -> None:
    manifest.manifest_path(plan(tmp_path)).unlink()
    found = look(tmp_path / "int8.plan")
    assert found["precision"] is None
    assert "int8.plan.json is missing" in found["warnings"][0]
    assert "nothing else is known" in found["warnings"][0]


@pytest.mark.parametrize("which", ["int8.plan", "int8.onnx"])
def test_another_file_than_the_manifest_describes_fails(tmp_path: Path, which: str) -> None:
    path = plan(tmp_path)
    (tmp_path / which).write_bytes(b"replaced")
    found = look(path, code=1)
    assert which in found["problems"][0]
    assert found["next"][0].startswith("svtool build-trt")


def test_a_missing_twin_is_a_warning(tmp_path: Path) -> None:
    path = plan(tmp_path)
    (tmp_path / "int8.onnx").unlink()
    assert any("twin int8.onnx is missing" in one for one in look(path)["warnings"])


@pytest.mark.parametrize(
    ("facts", "capability", "warning"),
    [
        ({"built_with": {"tensorrt_rtx": "1.2"}}, None, "built with TensorRT-RTX 1.2, here is 9.9"),
        ({}, "9.0", "this GPU has compute capability 9.0"),
        ({}, "7.5", "this GPU has compute capability 7.5"),
        ({"compute_capability": "8.6, 8.9"}, "8.0", "built for compute capability 8.6, 8.9"),
        (
            {"runtime": "tensorrt", "compute_capability": "8.0"},
            "8.9",
            "compute capability 8.0, this GPU has 8.9",
        ),
        ({"runtime": "onnxruntime"}, None, "which is no TensorRT"),
    ],
)
def test_a_plan_for_another_machine_is_a_warning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    facts: dict[str, Any],
    capability: str | None,
    warning: str,
) -> None:
    monkeypatch.setattr(inspect, "compute_capability", lambda: capability)
    monkeypatch.setattr(inspect, "installed", lambda *_: "9.9")
    assert any(warning in one for one in look(plan(tmp_path, **facts))["warnings"])


@pytest.mark.parametrize(
    ("wanted", "capability"), [("portable", "8.9"), ("portable", "12.0"), ("7.5", "7.5")]
)
def test_a_plan_for_this_machine_is_not_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str, capability: str
) -> None:
    monkeypatch.setattr(inspect, "compute_capability", lambda: capability)
    found = look(plan(tmp_path, compute_capability=wanted, verified_on_gpu=True))
    assert found["warnings"] == []


def test_the_model_beside_may_be_another_one_now(tmp_path: Path) -> None:
    path = plan(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"model")
    manifest.write_manifest(tmp_path / "model.onnx", {"kind": "model", "onnx_digest": "b" * 64})
    assert any("another model than the one it was built from" in one for one in look(path)["warnings"])


# --- what the build knew -------------------------------------------------------------------------


def signals(verdict: str = "pass", sqnr_db: float | None = 47.0, **facts: Any) -> dict[str, Any]:
    found = {"verdict": verdict, "reasons": [], "drift": 0.0, "low": -0.1, "high": 0.2}
    return found | {"disagreement": 0.5, "sqnr_db": sqnr_db, "utterances": 60} | facts


def search_block(**last: Any) -> dict[str, Any]:
    first = {"on": "float32 graph with Q/DQ", "fp16": [], "share": 0.9, "holds": False}
    kept = {"on": "fp16 twin", "fp16": ["w_2: encoder.0-1", "w_1: encoder.0-1"], "share": 0.8, "holds": True}
    gate = {"budget": 0.5, "max_disagreement": 10.0, "min_sqnr_db": 46.0, "data": {"list": "drift.jsonl"}}
    steps = [first | {"signals": signals("fail", 42.0)}, kept | {"signals": signals() | last}]
    return {"gate": gate, "limit": 60, "sqnr": {"db": 46.7, "max_db": 45.2}, "steps": steps, "ranking_db": {}}


def test_a_searched_engine_tells_its_budget_and_what_was_measured(tmp_path: Path) -> None:
    path = plan(tmp_path, search=search_block())
    found = look(path)["search"]
    assert (found["budget"], found["verdict"], found["drift_points"]) == (0.5, "pass", 0.0)
    assert (found["ci_low"], found["ci_high"], found["disagreement"]) == (-0.1, 0.2, 0.5)
    assert (found["sqnr_db"], found["utterances"]) == (47.0, 60)
    assert found["fp16"] == ["w_2: encoder.0-1", "w_1: encoder.0-1"]
    text = text_of(path)
    for part in (
        "drift PASS, +0.00 points (-0.10 to +0.20), 0.5 points budget, 0.5 % disagreement, 47 dB SQNR, 60 utterances",
        "drift of 0.5 points, disagreement of 10 %, SQNR from 46 dB, on drift.jsonl",
        "back in fp16 2 groups: w_2: encoder.0-1; w_1: encoder.0-1",
        "2 measurements, 1 within",
        "svtool validate-wer",
    ):
        assert part in text, part
    assert "not measured" not in text


def test_a_search_that_proved_nothing_is_a_finding(tmp_path: Path) -> None:
    path = plan(tmp_path, search=search_block(verdict="inconclusive", reasons=["too little data"]))
    assert "its search ended inconclusive: too little data" in look(path)["warnings"]


@pytest.mark.parametrize("block", [None, [], {"steps": 3}, {"steps": [7]}, {"steps": [{"signals": "x"}]}])
def test_a_search_block_of_other_types_breaks_nothing(tmp_path: Path, block: Any) -> None:
    assert "Findings" in text_of(plan(tmp_path, search=block))


@pytest.mark.parametrize(
    ("calibration", "says"),
    [
        ({"used": 128, "frames": 9000, "warnings": ["clipped at full scale: 3"]}, "clipped at full scale: 3"),
        ({"used": 1, "frames": 9000}, "used only 1 utterance; ranges want at least 64"),
        ({"used": 128, "frames": 10}, "used only 0.6 s of audio"),
        ({"method": "imported", "used": 0, "frames": 0}, "the ranges were never measured"),
        ({"used": 128, "frames": 9000, "sqnr": {"db": 30.0, "max_db": 34.5}}, "4.5 dB worse than with max"),
        ({"used": 128, "frames": 9000, "sqnr": {"db": 33.0, "max_db": 34.5}}, None),
    ],
)
def test_what_was_wrong_with_its_calibration_is_found_again(
    tmp_path: Path, calibration: dict[str, Any], says: str | None
) -> None:
    found = [one for one in look(plan(tmp_path, calibration=calibration))["warnings"] if "calibration" in one]
    assert len(found) == (says is not None)
    assert says is None or says in found[0]


def test_what_a_calibration_says_itself_is_not_said_twice(tmp_path: Path) -> None:
    own = ["used only 3 utterances; ranges want at least 64"]
    path = plan(tmp_path, calibration={"used": 3, "frames": 10, "warnings": own})
    assert [one for one in look(path)["warnings"] if "used only" in one] == [f"its calibration: {own[0]}"]


@pytest.mark.parametrize(
    ("precision", "decibels", "poor"),
    [("int8", 14.0, True), ("int8", 33.0, False), ("fp16", 35.0, True), ("int8-weights", 20.0, True)],
)
def test_an_engine_unlike_float32_is_a_finding(
    tmp_path: Path, precision: str, decibels: float, poor: bool
) -> None:
    path = plan(tmp_path, precision=precision, parity={"sqnr_db": decibels, "argmax_agreement": 96.0})
    found = [one for one in look(path)["warnings"] if "resembles float32 poorly" in one]
    assert bool(found) == poor


def journal(path: Path, **entries: Any) -> Path:
    path.write_text(json.dumps({"schema": "svtool.search/1", "key": "k", "entries": entries}))
    return path


def test_the_journal_of_a_search_tells_what_was_measured_and_how_to_go_on(tmp_path: Path) -> None:
    entries = {
        "baseline": [{"text": "a"}, {"text": "b"}],
        "rank": {"two": 50.0, "one": 40.0},
        "score aa": signals("fail", 42.0),
        "score bb": signals("pass", 49.0),
        "confirm bb": signals("pass", 48.0),
    }
    path = journal(tmp_path / "s46.search.json", **entries)
    found = look(path)
    assert found["kind"] == "search"
    assert (found["search"]["maps"], found["search"]["measured"], found["search"]["baseline"]) == (2, 3, 2)
    assert found["search"]["best"]["sqnr_db"] == 49.0
    assert list(found["search"]["ranking_db"]) == ["one", "two"]
    assert found["next"][0].startswith(
        f"svtool build-trt MODEL --int8 --drift-budget POINTS -o {tmp_path}/s46.plan"
    )
    text = text_of(path)
    assert "2 precision maps in 3 measurements: 1 fail, 2 pass" in text
    assert "best PASS, +0.00 points" in text
    assert "40.0 dB with one alone in int8" in text
    assert "drift not measured" not in text
    (tmp_path / "model.onnx").write_bytes(b"model")
    assert f"build-trt {tmp_path / 'model.onnx'} --int8" in look(path)["next"][0]


def test_a_journal_that_has_only_begun(tmp_path: Path) -> None:
    path = journal(tmp_path / "int8.search.json", baseline=[{"text": "a"}])
    assert "1 answer of the float32 model" in text_of(path)
    path.write_text(json.dumps({"schema": "svtool.search/1", "entries": 3}))
    with pytest.raises(ArtifactError, match="damaged"):
        inspect.inspect(path)


# --- commands and words --------------------------------------------------------------------------


def dynamic(path: Path) -> Path:
    """As onnxruntime.quantization leaves it: our metadata copied along."""
    model = small_graph.make()
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1].startswith("val_"):
            node.op_type = "MatMulInteger"
    for key, value in (("svtool.precision", "fp32"), ("svtool.source", "tiny")):
        model.metadata_props.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())
    return path


def test_a_copy_that_another_tool_quantized_is_no_twin(tmp_path: Path) -> None:
    path = dynamic(tmp_path / "model_quant.onnx")
    found = look(path)
    assert found["kind"] == "foreign-onnx"
    assert any("its metadata says fp32, its graph is int8-dynamic" in one for one in found["warnings"])
    assert "ONNX from elsewhere, dynamically quantized" in text_of(path)
    assert "twin" not in text_of(path)
    assert not any("model.onnx" in one for one in found["next"])


def test_without_its_manifest_only_an_engine_beside_its_plan_is_a_twin(
    tmp_path: Path, tiny_int8: Path
) -> None:
    path = tmp_path / "int8.onnx"
    shutil.copy(tiny_int8.with_suffix(".onnx"), path)
    assert look(path)["kind"] == "engine"
    path.with_suffix(".plan").write_bytes(b"plan")
    assert look(path)["kind"] == "twin"


def test_commands_name_only_files_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine written elsewhere than beside its model: the model is looked for under engines/ by its digest."""
    monkeypatch.chdir(tmp_path)
    plan(tmp_path)
    path = Path("int8.plan")
    assert look(path)["next"][-1] == "svtool validate-wer MODEL int8.plan --data LIST"
    for name, digest in (("other", "b"), ("right", "a")):
        model = tmp_path / "engines" / name / "model.onnx"
        model.parent.mkdir(parents=True)
        model.write_bytes(b"model")
        manifest.write_manifest(model, {"kind": "model", "onnx_digest": digest * 64})
    assert look(path)["next"][-1] == "svtool validate-wer engines/right/model.onnx int8.plan --data LIST"
    shutil.copy("engines/other/model.onnx", "model.onnx")
    shutil.copy("engines/other/model.onnx.json", "model.onnx.json")
    assert look(path)["next"][-1] == "svtool validate-wer engines/right/model.onnx int8.plan --data LIST"


def test_a_report_proposes_nothing_with_files_that_are_gone(tmp_path: Path) -> None:
    path = plan(tmp_path)
    report = wer_report(tmp_path / "report.json", path)
    path.unlink()
    assert look(report)["next"] == ["svtool serve CANDIDATE"]
    wer_report(report, tmp_path / "int8.onnx", verdict="fail")
    assert "its verdict is fail" in look(report)["warnings"]


def test_a_precision_that_is_not_known_is_not_guessed(tmp_path: Path) -> None:
    path = plan(tmp_path, precision="int8-weights")
    path.write_bytes(b"replaced")
    assert "--int8 --weight-only" in look(path, code=1)["next"][0]
    described = manifest.read_manifest(path)
    del described["precision"]
    manifest.write_json(manifest.manifest_path(path), described)
    (command,) = look(path, code=1)["next"]
    assert command.endswith("(add --int8 or --fp16, as it was)")


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"schema": "svtool.manifest/1"}'])
def test_a_manifest_that_says_nothing_leaves_the_precision_open(tmp_path: Path, content: str) -> None:
    path = tmp_path / "s46.plan"
    path.write_bytes(b"plan bytes")
    manifest.manifest_path(path).write_text(content, encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"--int8 or --fp16, as it was"):
        inspect.inspect(path)


def test_one_is_singular_and_what_is_missing_is_said(tmp_path: Path) -> None:
    profiles = [{"batch": 1, "seconds": 5.0}]
    path = plan(tmp_path, profiles=profiles, calibration={"method": "max", "used": 128, "frames": 1})
    text = text_of(path)
    assert "up to 1 utterance of 5 s" in text
    assert "128 used, 1 frame," in text
    assert "list not recorded method" in text
    assert "portable over compute capability 8.0, 8.6, 8.9 and 12.x" in text
    shutil.copy(path, tmp_path / "second.plan")
    assert "1 ONNX file, 2 plans" in text_of(tmp_path)


@pytest.mark.parametrize("width", [40, 100])
def test_every_unmet_point_stands_in_its_column_and_is_a_finding(foreign: Path, width: int) -> None:
    found = inspect.inspect(foreign)
    assert found.graph is not None
    points = len(found.graph.runs_problems)
    page = render(found, width).plain
    lines = [line for line in page.splitlines() if "not met:" in line]
    assert points > 1
    assert len({line.index("not met:") for line in lines}) == 1
    assert len(lines) == points
    assert any(f"{points} points of its contract not met" in one for one in found.warnings)
    assert "nothing to report" not in page
    assert "1 node\n" in render(found, 200).plain


# --- other files ---------------------------------------------------------------------------------


def wer_report(path: Path, candidate: Path, **facts: Any) -> Path:
    report = {
        "schema": "svtool.validate-wer/1",
        "verdict": "pass",
        "drift_points": 0.12,
        "ci_low": -0.05,
        "ci_high": 0.31,
        "budget": 0.5,
        "utterances": 2400,
        "metric": "WER",
        "executed": False,
        "baseline": {"name": "model.onnx", "artifact": None, "rate_percent": 3.5},
        "candidate": {
            "artifact": str(candidate),
            "sha256": manifest.sha256_file(candidate),
            "provider": "onnxruntime: CPUExecutionProvider",
        },
    }
    path.write_text(json.dumps(report | facts), encoding="utf-8")
    return path


def test_wer_results_are_found_beside_the_artifact_they_judged(tmp_path: Path) -> None:
    path = plan(tmp_path)
    wer_report(tmp_path / "report.json", path)
    found = look(path)
    assert [one["verdict"] for one in found["wer"]] == ["pass"]
    assert "PASS, +0.12 points (-0.05 to +0.31)" in text_of(path)
    assert "the plan itself did not run" in text_of(path)
    wer_report(tmp_path / "report.json", path, verdict="fail")
    assert "validate-wer has failed it" in look(path)["warnings"]
    other = tmp_path / "other.plan"
    other.write_bytes(b"other bytes")
    wer_report(tmp_path / "report.json", other)
    assert look(path)["wer"] == []


def test_wer_results_in_the_manifest(tmp_path: Path) -> None:
    path = plan(tmp_path, wer={"verdict": "pass", "drift_points": 0.2, "budget": 0.5})
    assert look(path)["wer"] == [{"from": "manifest", "verdict": "pass", "drift_points": 0.2, "budget": 0.5}]


def test_a_wer_report_and_what_became_of_what_it_judged(tmp_path: Path) -> None:
    path = plan(tmp_path)
    report = wer_report(tmp_path / "report.json", path)
    found = look(report)
    assert (found["kind"], found["warnings"]) == ("report", [])
    assert found["next"] == [f"svtool serve {path}"]
    path.write_bytes(b"rebuilt")
    assert "has changed since" in look(report)["warnings"][0]
    path.unlink()
    assert "is not here any more" in look(report)["warnings"][0]


def test_a_calibration_cache(tiny_int8: Path, tmp_path: Path) -> None:
    beside = list(tiny_int8.parent.glob("*.calibration.json"))
    # none where the model exported here is the one that the committed cache is of
    cache = beside[0] if beside else COMMITTED / "tiny.json"
    found = look(cache)
    assert found["kind"] == "calibration"
    assert found["calibration"]["used"] == 128
    assert found["calibration"]["amax"] >= 28
    assert found["calibration"]["audio_digests"] == 128
    assert f"--int8 --calibration {cache}" in found["next"][0]
    assert "128 used" in text_of(cache)
    raw = json.loads(cache.read_text())
    raw["amax"][next(iter(raw["amax"]))] = -1
    damaged = tmp_path / "damaged.json"
    damaged.write_text(json.dumps(raw))
    assert look(damaged, code=1)["problems"]


def test_a_manifest_leads_to_its_artifact(tmp_path: Path) -> None:
    path = plan(tmp_path)
    assert look(manifest.manifest_path(path))["artifact"] == str(path)
    path.unlink()
    found = look(manifest.manifest_path(path))
    assert (found["kind"], found["precision"]) == ("manifest", "int8")
    assert "is not here" in found["warnings"][0]


def test_a_folder_lists_its_artifacts_with_their_state(tmp_path: Path) -> None:
    path = plan(tmp_path)
    (tmp_path / "sub").mkdir()
    shutil.copy(path, tmp_path / "sub" / "lone.plan")
    (tmp_path / "tokens.json").write_text("[1, 2]")
    wer_report(tmp_path / "report.json", path)
    found = look(tmp_path)
    assert [(one["name"], one["kind"], one["state"]) for one in found["members"]] == [
        ("int8.onnx", "onnx", "no manifest"),
        ("int8.plan", "plan", "ok"),
        ("report.json", "report", "ok"),
        ("sub/lone.plan", "plan", "no manifest"),
    ]
    lines = render(inspect.inspect(tmp_path), 80).plain.splitlines()
    assert "  int8.plan: plan, int8, 0.0 KiB, ok" in lines
    path.write_bytes(b"replaced")
    assert any("int8.plan" in one for one in look(tmp_path, code=1)["problems"])


def test_a_checkpoint_folder(tmp_path: Path) -> None:
    from svtool import tiny

    found = look(tiny.MODEL_DIR)
    assert (found["kind"], found["next"][0]) == ("checkpoint", f"svtool export {tiny.MODEL_DIR}")
    shutil.copy(tiny.MODEL_DIR / "model.pt", tmp_path)
    assert any("config.yaml" in one for one in look(tmp_path, code=1)["problems"])


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("cut.onnx", b"\x08\x0a\x12\x07pytorch\x3a\xff\xff\x03", "is cut off: 15 bytes of at least"),
        ("empty.plan", b"", "empty"),
        ("empty.onnx", b"", "empty"),
        ("list.json", b"[1]", "holds a list"),
        ("cut.json", b'{"schema": "svtool.cal', "cut off"),
        ("other.json", b'{"a": 1}', "no file of svtool"),
        ("int8.plan.json", b'{"schema": "svtool.manifest/1"}', "damaged"),
        ("notes.txt", b"hello", "nothing that svtool knows"),
        ("missing.onnx", None, "does not exist"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(
    tmp_path: Path, name: str, content: bytes | None, says: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    result = runner.invoke(app, ["inspect", str(path)])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"holds no model.*svtool export"):
        inspect.inspect(tmp_path)


# --- the page ------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 80, 120])
def test_lines_break_between_words_only(tmp_path: Path, width: int) -> None:
    path = plan(tmp_path, precision_map={"int8": ["encoder.encoders0.0.self_attn.linear_q_k_v"] * 5})
    page = render(inspect.inspect(path), width).plain
    wide = render(inspect.inspect(path), 1000).plain
    assert page.split() == wide.split()
    for line in page.splitlines():
        assert line == line.rstrip()
        assert len(line) <= width or len(line.split()) == 1, line


def test_a_piped_report_has_no_trailing_spaces_and_no_colour(tmp_path: Path) -> None:
    path = plan(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "svtool", "inspect", str(path)], capture_output=True, text=True, check=True
    )
    assert "\x1b" not in done.stdout
    assert all(line == line.rstrip() for line in done.stdout.splitlines())
    assert str(path) in done.stdout  # longer than the width: neither cut nor broken


def test_no_library_of_a_runtime_is_loaded(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from svtool.inspect import inspect\n"
        f"inspect(Path({str(plan(tmp_path))!r}))\n"
        "bad = {'tensorrt', 'tensorrt_rtx', 'onnxruntime', 'torch', 'pycuda'} & set(sys.modules)\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_metadata_is_shown_in_short(tmp_path: Path) -> None:
    model = small_graph.make()
    model.metadata_props.add(key="neg_mean", value="1," * 1000)
    path = tmp_path / "x.onnx"
    onnx.save(model, path)
    assert len(onnxfacts.read_facts(path).metadata["neg_mean"]) == 200
