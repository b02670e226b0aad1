"""`svtool validate-wer` on real engines of the embedded model: what passes, what fails, what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

from svtool.cli import app
from svtool.manifest import manifest_path

runner = CliRunner()
LIMIT = "45"


def gate(*arguments: object) -> tuple[int, dict[str, Any], str]:
    result = runner.invoke(app, ["validate-wer", *map(str, arguments), "--json"])
    return result.exit_code, json.loads(result.stdout) if result.stdout.strip() else {}, result.stderr


def test_a_sound_int8_engine_passes_through_its_twin(tiny_model: Path, tiny_int8: Path) -> None:
    code, report, _ = gate(tiny_model, tiny_int8, "--limit", LIMIT)
    assert (code, report["verdict"]) in ((0, "pass"), (3, "inconclusive"))
    assert report["schema"] == "svtool.validate-wer/1"
    wanted = {"verdict", "drift_points", "ci_low", "ci_high", "budget", "disagreement", "sqnr_db", "baseline",
              "candidate", "by_language", "worst", "executed"}  # fmt: skip
    assert wanted <= set(report)
    assert report["executed"] is False
    assert "engine itself not executed" in report["candidate"]["note"]
    assert report["sqnr_db"] > 35
    assert report["budget"] == 0.5


def test_a_model_against_itself_drifts_by_exactly_nothing(tiny_model: Path) -> None:
    code, report, _ = gate(tiny_model, tiny_model, "--limit", LIMIT)
    assert code == 0
    assert report["drift_points"] == report["ci_low"] == report["ci_high"] == report["disagreement"] == 0
    assert report["executed"] is True
    assert "baseline and candidate are the same file; this proves only the pipeline" in report["warnings"]


@pytest.mark.case("Q9")
def test_an_activation_scale_times_100_fails(tiny_model: Path, tiny_int8: Path, tmp_path: Path) -> None:
    candidate = damaged(tiny_int8.with_suffix(".onnx"), tmp_path, lambda scale: scale * 100)
    code, report, _ = gate(tiny_model, candidate, "--limit", LIMIT)
    assert (code, report["verdict"]) == (1, "fail")
    assert report["reasons"]


@pytest.mark.case("B7", "Q9")
def test_an_engine_of_nan_fails_and_never_counts_as_silence(
    tiny_model: Path, tiny_int8: Path, tmp_path: Path
) -> None:
    candidate = damaged(tiny_int8.with_suffix(".onnx"), tmp_path, lambda scale: scale * np.nan)
    code, report, said = gate(tiny_model, candidate, "--limit", LIMIT)
    assert code == 1
    assert report.get("verdict") == "fail" or "finite" in said


def damaged(twin: Path, folder: Path, change: Any) -> Path:
    """A copy of an engine's directory in which one activation scale is changed."""
    for path in twin.parent.iterdir():
        if path.suffix != ".plan" and path.is_file():
            shutil.copyfile(path, folder / path.name)
    model = onnx.load(twin)
    named = {one.name: one for one in model.graph.initializer}
    quantize = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
    tensor = named[quantize[len(quantize) // 2].input[1]]
    scale = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(change(scale), dtype=scale.dtype), tensor.name))
    onnx.save(model, folder / twin.name)
    manifest_path(folder / twin.name).unlink()  # it would give the change away
    return folder / twin.name


@pytest.mark.parametrize(
    "arguments", [["model.onnx"], ["a.onnx", "b.onnx"], ["a.onnx", "b.onnx", "--budget", "-1"]]
)
def test_what_is_not_clear_is_a_usage_error_or_one_sentence(in_folder: Path, arguments: list[str]) -> None:
    code, report, said = gate(*arguments)
    assert code in (1, 2)
    assert report == {}
    assert len([line for line in said.splitlines() if line.strip()]) >= 1
    assert "Traceback" not in said


def test_a_list_without_texts_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    (tmp_path / "list.jsonl").write_text('{"audio": "a.wav"}\n')
    code, _, said = gate(tiny_model, tiny_model, "--data", tmp_path / "list.jsonl")
    assert code == 1
    assert "text" in said


def test_a_plan_that_was_cut_off_is_never_passed_through_its_twin(
    tiny_model: Path, tiny_int8: Path, tmp_path: Path
) -> None:
    plan = copied(tiny_int8, tmp_path)
    plan.write_bytes(plan.read_bytes()[:5000])
    code, _, said = gate(tiny_model, plan, "--limit", LIMIT)
    assert code == 1
    assert "int8.plan is not the file its manifest describes" in said


def test_a_twin_of_another_build_is_refused(tiny_model: Path, tiny_int8: Path, tmp_path: Path) -> None:
    plan = copied(tiny_int8, tmp_path)
    plan.with_suffix(".onnx").write_bytes(tiny_model.read_bytes())
    code, _, said = gate(tiny_model, plan, "--limit", LIMIT)
    assert code == 1
    assert "int8.onnx is not the file its manifest describes" in said


def copied(plan: Path, folder: Path) -> Path:
    for path in plan.parent.iterdir():
        if path.is_file():
            shutil.copyfile(path, folder / path.name)
    return folder / plan.name


def test_a_few_utterances_cannot_decide(tiny_model: Path, tiny_int8: Path) -> None:
    code, report, _ = gate(tiny_model, tiny_int8, "--limit", 5)
    assert (code, report["verdict"]) == (3, "inconclusive")
    assert "too little data" in report["reasons"][0]


@pytest.mark.parametrize("data", ["absent.jsonl", "tiny:nonsense", "tiny:"])
def test_a_list_that_does_not_exist_is_one_sentence_and_exit_1(
    tiny_model: Path, in_folder: Path, data: str
) -> None:
    code, report, said = gate(tiny_model, tiny_model, "--data", data)
    assert (code, report, len(said.splitlines())) == (1, {}, 1)
    assert data in said
    assert ("tiny:calibration, tiny:drift" in said) == data.startswith("tiny:")


def test_a_missing_manifest_and_swapped_sides_are_in_the_report(
    tiny_model: Path, tiny_int8: Path, tmp_path: Path
) -> None:
    """Without a manifest the precision is read from the graph, so that swapped sides are still seen."""
    plan = copied(tiny_int8, tmp_path)
    for path in tmp_path.glob("*.onnx.json"):
        path.unlink()
    twin, model = plan.with_suffix(".onnx"), tmp_path / "model.onnx"
    code, report, _ = gate(twin, model, "--data", "tiny:drift", "--limit", LIMIT)
    assert code in (0, 3)
    said = "\n".join(report["warnings"])
    assert f"svtool validate-wer {model} {twin}" in said
    assert "baseline int8.onnx: no manifest (int8.onnx.json) lies beside it" in said
    assert "candidate model.onnx: no manifest (model.onnx.json) lies beside it" in said
    assert len(report["baseline"]["sha256"]) == 64


def test_a_plan_against_its_own_twin_proves_nothing(tiny_int8: Path) -> None:
    twin = tiny_int8.with_suffix(".onnx")
    code, report, _ = gate(twin, tiny_int8, "--data", "tiny:drift", "--limit", LIMIT)
    assert code == 0
    told = any("the same file ran for baseline and candidate" in one for one in report["warnings"])
    assert told is not report["executed"]  # with a GPU the plan itself runs


def test_a_damaged_manifest_is_refused_by_name(tiny_model: Path, tiny_int8: Path, tmp_path: Path) -> None:
    plan = copied(tiny_int8, tmp_path)
    manifest_path(plan).write_text("{")
    for pair in ((tiny_model, plan), (plan, tiny_model)):
        code, report, said = gate(*pair, "--data", "tiny:drift")
        assert (code, report) == (1, {})
        assert "int8.plan.json is damaged" in said


@pytest.mark.parametrize("columns", ["40", "80"])
def test_the_printed_report_has_no_spaces_at_line_ends(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    result = runner.invoke(app, ["validate-wer", str(tiny_model), str(tiny_model), "--limit", "5"])
    lines = result.stdout.splitlines()
    assert len(lines) > 30
    assert [line for line in lines if line != line.rstrip()] == []
