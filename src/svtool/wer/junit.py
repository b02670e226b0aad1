"""A gate report as JUnit XML: the verdict and every check as one test each.

Knows the form that CI systems read. Knows nothing of how figures were measured. What is inconclusive is an
`error` there: a system that reads only this file must not take it for a pass.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from svtool.wer.gate import GateReport
from svtool.wer.tables import provenance_table, signals_table

Outcome = Literal["failure", "error"] | None
_SUITE = "svtool.validate-wer"
_OUTCOMES: dict[str, Outcome] = {"pass": None, "fail": "failure", "inconclusive": "error"}
_OF_CHECKS: dict[bool | None, Outcome] = {True: None, False: "failure", None: "error"}
# what XML 1.0 cannot hold in any way of writing
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class _Case:
    name: str
    outcome: Outcome
    message: str


def suite(report: GateReport) -> str:
    cases = list(_cases(report))
    counts = {kind: sum(case.outcome == kind for case in cases) for kind in ("failure", "error")}
    numbers = {
        "tests": str(len(cases)),
        "failures": str(counts["failure"]),
        "errors": str(counts["error"]),
        "skipped": "0",
    }
    root = ElementTree.Element("testsuites", {"name": _SUITE, **numbers})
    under = ElementTree.SubElement(root, "testsuite", {"name": _SUITE, **numbers})
    _add_properties(under, report)
    for case in cases:
        _add_case(under, case)
    ElementTree.SubElement(under, "system-out").text = _clean(_figures(report))
    ElementTree.indent(root)
    written = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{written}\n'


def _cases(report: GateReport) -> Iterator[_Case]:
    yield _Case("verdict", _OUTCOMES[report.verdict], "\n".join(report.reasons))
    seen: Counter[str] = Counter()
    for check in report.checks:
        seen[check.name] += 1  # both sides often have one file name, and CI systems merge tests of one name
        name = check.name if seen[check.name] == 1 else f"{check.name} ({seen[check.name]})"
        yield _Case(name, _OF_CHECKS[check.passed], check.message)


def _add_case(under: ElementTree.Element, case: _Case) -> None:
    added = ElementTree.SubElement(under, "testcase", {"classname": _SUITE, "name": _clean(case.name)})
    if case.outcome is None:
        ElementTree.SubElement(added, "system-out").text = _clean(case.message)
        return
    kind = "inconclusive" if case.outcome == "error" else "limit"
    said = {"message": _clean(case.message.partition("\n")[0]), "type": kind}
    ElementTree.SubElement(added, case.outcome, said).text = _clean(case.message)


def _add_properties(under: ElementTree.Element, report: GateReport) -> None:
    properties = ElementTree.SubElement(under, "properties")
    rows = [(row[0], row[1]) for row in provenance_table(report).rows]
    for name, value in (("verdict", report.verdict), *rows):
        ElementTree.SubElement(properties, "property", {"name": _clean(name), "value": _clean(value)})


def _figures(report: GateReport) -> str:
    rows = signals_table(report).rows
    lines = [f"{name}: {value}" + (f" (limit {limit})" if limit else "") for name, value, limit in rows]
    return "\n".join([*lines, *(f"! {warning}" for warning in report.warnings)])


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
