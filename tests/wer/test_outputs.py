"""Markdown, JUnit XML, JSON: as files, and safe in the places where they end up."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from report_samples import rich_report, silent_report, sound_report

from svtool.errors import SvtoolError, UsageError
from svtool.wer.gate import GateReport
from svtool.wer.groups import Group
from svtool.wer.junit import suite
from svtool.wer.markdown import summary
from svtool.wer.outputs import require_writable, write_reports
from svtool.wer.report import to_json

# --- Markdown ----------------------------------------------------------------------------------


def test_the_summary_begins_with_the_verdict_and_holds_the_signals() -> None:
    text = summary(sound_report())
    assert text.startswith("### ✅ pass: b against a\n\ndrift +0.00 points")
    assert "| drift (95 % interval), points | +0.00 (+0.00 to +0.00) | ≤ 0.5 |" in text
    assert summary(rich_report()).startswith("### ❌ fail: \\<int8\\>.plan against model.onnx")
    assert "⚠️ inconclusive" in summary(silent_report())


def test_no_text_of_the_data_becomes_markup_or_calls_anybody() -> None:
    text = summary(rich_report())
    outside = re.sub(r"`+ ?.*?[^`] ?`+(?!`)", "", text)
    assert "<script" not in outside
    assert not re.search(r"@\w", outside)
    assert not re.search(r"(?<!\\)#\d", outside)
    assert "\u202e" not in text
    allowed = {"<details>", "<summary>", "</summary>", "</details>"}
    assert set(re.findall(r"(?<!\\)<[^>\n]*>", outside)) <= allowed


def test_every_row_of_a_table_has_as_many_cells_as_its_head() -> None:
    lines = summary(rich_report()).splitlines()
    heads = [at for at, line in enumerate(lines) if re.fullmatch(r"\|( -+:? \|)+", line)]
    assert len(heads) >= 6
    for at in heads:
        cells = lines[at].count("|")
        end = next(n for n in range(at, len(lines)) if not lines[n].startswith("|"))
        rows = lines[at - 1 : end]
        assert len(rows) > 2
        assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {cells}


def test_a_comment_stays_under_the_hosts_limit_whatever_the_report_holds() -> None:
    report = rich_report()
    (group, *_) = report.by_language
    long = "very long " * 2000
    many: tuple[Group, ...] = tuple(replace(group, name=f"{long} {n}") for n in range(300))
    worst = tuple(replace(one, raw=(long,) * 3, normalised=(long,) * 3) for one in report.worst)
    huge = replace(
        report, by_language=many, by_column={"a": many}, worst=worst * 10, reasons=(long,) * 90, warnings=(long,) * 90
    )  # fmt: skip
    text = summary(huge)
    assert len(text) < 65_536
    assert "and 288 more, in the other reports" in text


# --- JUnit -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("report", "kind"),
    [
        (sound_report(), None),
        (rich_report(), "failure"),
        (silent_report(), "error"),
        (rich_report(wrong=0, max_disagreement=None), "failure"),
    ],
    ids=["pass", "fail", "inconclusive", "failed utterance"],
)
def test_a_suite_fails_exactly_when_the_command_does(report: GateReport, kind: str | None) -> None:
    root = ElementTree.fromstring(suite(report))
    (found,) = root.findall("testsuite")
    cases = found.findall("testcase")
    assert int(found.attrib["tests"]) == len(cases) == 1 + len(report.checks)
    for name in ("failure", "error"):
        assert int(found.attrib[f"{name}s"]) == len(found.findall(f"testcase/{name}"))
    (verdict,) = [case for case in cases if case.attrib["name"] == "verdict"]
    assert [one.tag for one in verdict if one.tag != "system-out"] == ([kind] if kind else [])
    bad = int(found.attrib["failures"]) + int(found.attrib["errors"])
    assert (bad > 0) == (report.exit_code != 0)


def test_a_check_that_could_not_be_measured_is_an_error_not_a_pass() -> None:
    report = sound_report()
    check = replace(rich_report().checks[-1], name="sqnr_db", passed=None, message="not measured")
    root = ElementTree.fromstring(suite(replace(report, verdict="inconclusive", checks=(check,))))
    (case,) = [one for one in root.iter("testcase") if one.attrib["name"] == "sqnr_db"]
    assert case.find("error") is not None
    assert case.find("error").attrib == {"message": "not measured", "type": "inconclusive"}  # type: ignore[union-attr]


def test_two_files_of_one_name_are_two_tests() -> None:
    report = sound_report()
    check = rich_report().checks[0]
    root = ElementTree.fromstring(suite(replace(report, checks=(check, check))))
    names = [case.attrib["name"] for case in root.iter("testcase")]
    assert names == ["verdict", check.name, f"{check.name} (2)"]


def test_characters_that_xml_cannot_hold_are_replaced() -> None:
    text = suite(replace(rich_report(), reasons=("bad \x07 \ud800 \ufffe ]]> & <b>",)))
    root = ElementTree.fromstring(text.encode("utf-8"))
    (failure,) = [case.find("failure") for case in root.iter("testcase") if case.attrib["name"] == "verdict"]
    assert failure is not None
    assert failure.text == "bad \ufffd \ufffd \ufffd ]]> & <b>"


# --- files -------------------------------------------------------------------------------------


def test_each_suffix_gives_its_form_in_folders_that_need_not_exist(tmp_path: Path) -> None:
    report = rich_report()
    paths = [tmp_path / "new" / f"report.{suffix}" for suffix in ("html", "md", "xml", "json", "HTM")]
    require_writable(paths, audio=False)
    write_reports(report, paths)
    begins = [path.read_text(encoding="utf-8")[:9] for path in paths]
    assert begins == ["<!doctype", "### ❌ fai", "<?xml ver", '{\n  "sche', "<!doctype"]
    assert json.loads(paths[3].read_text(encoding="utf-8")) == json.loads(json.dumps(to_json(report)))
    assert sorted(tmp_path.rglob("*")) == sorted([tmp_path / "new", *paths])


def test_half_a_surrogate_pair_is_no_reason_to_lose_a_report(tmp_path: Path) -> None:
    report = replace(rich_report(), warnings=("odd \ud83d text",))
    paths = [tmp_path / f"report.{suffix}" for suffix in ("html", "md", "xml", "json")]
    write_reports(report, paths)
    assert json.loads(paths[3].read_text(encoding="utf-8"))["warnings"] == ["odd \ud83d text"]
    assert "odd [U+D83D] text" in paths[0].read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("names", "audio", "said"),
    [
        (["report.pdf"], False, ".html, .htm, .md, .xml, .json"),
        (["report"], False, "no form of report"),
        (["a.md", "x/../a.md"], False, "two reports of one name"),
        (["a.md"], True, "--report FILE.html"),
        ([], True, "--report FILE.html"),
        (["folder.html"], False, "is a folder"),
        (["list.json"], False, "would overwrite"),
    ],
)
def test_what_cannot_be_written_is_said_before_the_work(
    tmp_path: Path, names: list[str], audio: bool, said: str
) -> None:
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "x").mkdir()
    (tmp_path / "list.json").write_text("{}")
    with pytest.raises(UsageError, match=re.escape(said)):
        require_writable([tmp_path / name for name in names], audio=audio, inputs=[tmp_path / "list.json"])


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SvtoolError, match="is a file"):
        require_writable([tmp_path / "file" / "report.md"], audio=False)
