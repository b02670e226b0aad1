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
