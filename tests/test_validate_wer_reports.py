"""`svtool validate-wer --report`: files of a real run, what is refused before it, and the example for CI."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import typer
import yaml
from typer.testing import CliRunner

from svtool.cli import app

runner = CliRunner()
EXAMPLE = Path(__file__).parent.parent / "configs" / "github-actions.yml"


@pytest.mark.case("Q16")
def test_a_real_run_writes_every_form_and_they_agree(tiny_model: Path, tmp_path: Path) -> None:
    paths = [tmp_path / f"drift.{suffix}" for suffix in ("html", "md", "xml", "json")]
    options = [part for path in paths for part in ("--report", str(path))]
    command = [
        "validate-wer",
        str(tiny_model),
        str(tiny_model),
        "--limit",
        "5",
        "--json",
        "--audio",
        *options,
    ]
    result = runner.invoke(app, command)
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert json.loads(paths[3].read_text(encoding="utf-8")) == document
    assert paths[1].read_text(encoding="utf-8").startswith("### ✅ pass")
    root = ElementTree.fromstring(paths[2].read_text(encoding="utf-8"))
    assert (root.attrib["failures"], root.attrib["errors"]) == ("0", "0")
    page = paths[0].read_text(encoding="utf-8")
    assert page.count("data:audio/flac") == len(document["worst"])
    for path in paths[:3]:
        assert "5 utterances" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--report", "drift.pdf"], "no form of report for drift.pdf"),
        (["--audio"], "--report FILE.html"),
        (["--report", "list.json", "--data", "list.json"], "would overwrite"),
        (["--report", "a.html", "--references-only"], "--references-only"),
    ],
)
def test_what_cannot_be_written_costs_no_run(in_folder: Path, options: list[str], said: str) -> None:
    Path("list.json").write_text("{}")
    result = runner.invoke(app, ["validate-wer", "model.onnx", "int8.plan", *options])
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert Path("list.json").read_text() == "{}"


def steps() -> list[dict[str, Any]]:
    workflow = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = workflow["jobs"]["drift"]["steps"]
    return found


def test_the_ci_example_names_only_commands_and_options_that_exist() -> None:
    lines = [line for step in steps() for line in step.get("run", "").splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("svtool ")]
    assert [command[0] for command in commands] == ["export", "build-trt", "validate-wer"]
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, *arguments in commands:
        options = {option for parameter in known[name].params for option in parameter.opts}
        assert {one for one in arguments if one.startswith("-")} <= options
    reports = [one for one in commands[-1] if one.startswith("reports/")]
    assert [Path(one).suffix for one in reports] == [".html", ".md", ".xml", ".json"]


def test_the_ci_example_shows_a_report_of_a_failed_gate_and_never_hides_its_exit_code() -> None:
    (judge,) = [step for step in steps() if "validate-wer" in step.get("run", "")]
    assert not {"continue-on-error", "if"} & judge.keys()
    assert not re.search(r"\|\||;|exit", judge["run"])
    after = steps()[steps().index(judge) + 1 :]
    assert len(after) == 3
    assert all(step["if"].startswith("${{ !cancelled()") for step in after)
    assert yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))["permissions"] == {
        "contents": "read",
        "pull-requests": "write",
    }
