"""`svtool validate-wer` beyond two engines: kept results, saved texts, rates alone, and limits from a manifest."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from svtool.cli import app
from svtool.manifest import manifest_path, read_manifest
from svtool.wer import jobs

runner = CliRunner()
SHORT = ("--data", "tiny:drift", "--limit", "12")


def gate(*arguments: object) -> tuple[int, dict[str, Any], str]:
    result = runner.invoke(app, ["validate-wer", *map(str, arguments), "--json"])
    return result.exit_code, json.loads(result.stdout) if result.stdout.strip() else {}, result.stderr


def without_paths(report: dict[str, Any]) -> dict[str, Any]:
    return report | {"data": {key: report["data"][key] for key in ("list", "sha256")}}


def test_results_are_kept_found_again_and_serve_as_a_side(tiny_model: Path, tmp_path: Path) -> None:
    kept = tmp_path / "results.jsonl"
    code, first, _ = gate(tiny_model, tiny_model, *SHORT, "--results", kept)
    assert code == 0
    assert first["data"]["results"] == str(kept)
    size = kept.stat().st_size
    code, again, said = gate(tiny_model, tiny_model, *SHORT, "--results", kept)
    assert (code, again, kept.stat().st_size) == (0, first, size)
    assert f"12 answers of model.onnx found in {kept}" in said
    (tmp_path / "report.json").write_text(json.dumps(first))
    for saved in (kept, tmp_path / "report.json"):
        code, against, _ = gate(saved, tiny_model, *SHORT)
        assert (code, against["drift_points"], against["disagreement"]) == (0, 0, 0)
        assert (against["executed"], against["sqnr_db"]) == (False, None)
        assert against["baseline"]["sha256"] == first["baseline"]["sha256"]
    code, _, said = gate(tiny_model, tiny_model, *SHORT, "--results", kept, "--language", "en")
    assert code == 1
    assert "results of another comparison (baseline: conditions" in said


def test_a_report_never_takes_the_place_of_the_results(tiny_model: Path, tmp_path: Path) -> None:
    same = tmp_path / "one.json"
    code, report, said = gate(tiny_model, tiny_model, *SHORT, "--results", same, "--report", same)
    assert (code, report, same.exists()) == (2, {}, False)
    assert "would overwrite" in said


def test_texts_of_transcribe_serve_as_a_side(tiny_model: Path, tmp_path: Path) -> None:
    from svtool.utterances import read_utterances

    listed = read_utterances("tiny:drift").take(12)
    files = [str(one.audio) for one in listed]
    done = runner.invoke(app, ["transcribe", *files, "-m", str(tiny_model), "-f", "json", "-q"])
    saved = tmp_path / "saved.jsonl"
    saved.write_text(done.stdout)
    code, report, _ = gate(saved, tiny_model, *SHORT)
    assert code == 3  # whose texts they are is not known, and 12 utterances decide nothing
    assert (report["disagreement"], report["tag_agreement_percent"]["language"]) == (0, 100)
    assert report["baseline"]["note"].startswith("its texts were saved in")
    code, report, _ = gate(saved, tiny_model, *SHORT, "--min-sqnr", "10")
    assert code == 3
    assert any("was not measured" in reason for reason in report["reasons"])


def test_jobs_change_nothing(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "BLOCK_S", 20.0)  # else so few make one block, which one process runs
    wanted = gate(tiny_model, tiny_model, *SHORT)[1]
    code, report, _ = gate(tiny_model, tiny_model, *SHORT, "--jobs", "2")
    assert (code, report) == (0, wanted)


def test_any_column_and_one_that_is_not_there(tiny_model: Path) -> None:
    _, report, _ = gate(tiny_model, tiny_model, *SHORT, "--by", "word_set", "--by", "subset")
    assert set(report["by_column"]) == {"subset", "word_set"}
    assert set(report["by_column"]["subset"]) == {"clean", "10db", "5db"}
    code, report, said = gate(tiny_model, tiny_model, *SHORT, "--by", "speaker")
    assert (code, report) == (2, {})
    assert "no column 'speaker'" in said
    assert "language, subset, word_set" in said


def test_rates_alone(tiny_model: Path) -> None:
    code, report, _ = gate(tiny_model, *SHORT, "--references-only", "--by", "word_set")
    assert (code, report["schema"], report["utterances"]) == (0, "svtool.validate-wer.rates/1", 12)
    assert set(report["by"]) == {"language", "duration", "subset", "word_set"}
    printed = runner.invoke(app, ["validate-wer", str(tiny_model), *SHORT, "--references-only"])
    assert "model.onnx: WER" in printed.stdout


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("b.onnx", "--references-only"), "takes one artifact"),
        (("--references-only", "--budget", "1"), "--budget limits a comparison"),
        ((), "--references-only"),
    ],
)
def test_rates_alone_are_no_comparison(tiny_model: Path, more: tuple[str, ...], said: str) -> None:
    code, report, told = gate(tiny_model, *more, *SHORT)
    assert (code, report) == (2, {})
    assert said in told


def foreign(plan: Path, folder: Path, **calibration: object) -> tuple[Path, Path]:
    """The embedded model's engine under another name: no limit of its own is known for that."""
    for path in plan.parent.iterdir():
        if path.is_file():
            shutil.copyfile(path, folder / path.name)
    model, copied = folder / "model.onnx", folder / plan.name
    for artifact in (model, copied, copied.with_suffix(".onnx")):
        described = read_manifest(artifact)
        described["source"] = {"name": "other"}
        if artifact == copied:
            described["calibration"] |= calibration
        manifest_path(artifact).write_text(json.dumps(described))
    return model, copied


@pytest.mark.case("Q9")
@pytest.mark.parametrize(("max_db", "passed"), [(41.25, True), (55.5, False)])
def test_logits_of_any_model_are_held_to_what_max_calibration_reaches(
    tiny_int8: Path, tmp_path: Path, max_db: float, passed: bool
) -> None:
    model, plan = foreign(tiny_int8, tmp_path, sqnr={"db": 42.0, "max_db": max_db})
    code, report, _ = gate(model, plan, *SHORT)
    (check,) = (check for check in report["checks"] if check["name"] == "sqnr_db")
    assert (check["limit"], check["passed"]) == (max_db - 3, passed)
    assert f"3 dB under the {max_db:.1f} dB of max calibration with every layer in int8" in check["message"]
    assert passed is (code != 1)
    _, report, _ = gate(model, plan, *SHORT, "--min-sqnr", "12")
    (check,) = (check for check in report["checks"] if check["name"] == "sqnr_db")
    assert check["limit"] == 12


def test_int8_that_is_held_to_no_limit_is_said_to_be(tiny_int8: Path, tmp_path: Path) -> None:
    model, plan = foreign(tiny_int8, tmp_path, sqnr={})
    _, report, _ = gate(model, plan, *SHORT)
    assert [check for check in report["checks"] if check["name"] == "sqnr_db"] == []
    assert any("held to no limit" in warning for warning in report["warnings"])
