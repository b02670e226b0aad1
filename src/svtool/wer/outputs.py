"""Reports as files: which form a name asks for, and that nothing is lost by writing it.

Knows suffixes and files. Knows nothing of what a report says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from svtool.errors import SvtoolError, UsageError
from svtool.manifest import whole_file
from svtool.wer.gate import GateReport

PAGES = (".html", ".htm")
_SUFFIXES = (*PAGES, ".md", ".xml", ".json")


def require_writable(reports: Sequence[Path], *, audio: bool, inputs: Sequence[Path] = ()) -> None:
    """Asked before hours of work. `inputs`: files of this command that no report may overwrite."""
    for path in reports:
        if path.suffix.lower() not in _SUFFIXES:
            raise UsageError(f"no form of report for {path}: name a file that ends in {', '.join(_SUFFIXES)}")
        if any(_same(path, one) for one in inputs):
            raise UsageError(f"the report {path} would overwrite what this command reads: name another file")
        _require_folder(path)
    if len({path.resolve() for path in reports}) < len(reports):
        raise UsageError("two reports of one name: name each file once")
    if audio and not any(path.suffix.lower() in PAGES for path in reports):
        raise UsageError("--audio puts sounds on a page: give one as well, --report FILE.html")


def _same(path: Path, other: Path) -> bool:
    both_there = path.exists() and other.exists()
    return path.samefile(other) if both_there else path.resolve() == other.resolve()


def _require_folder(path: Path) -> None:
    if path.is_dir():
        raise UsageError(f"{path} is a folder: name a file for the report")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise SvtoolError(f"{path.parent} is a file, so no report can be put into it") from error


def write_reports(report: GateReport, paths: Sequence[Path], *, audio: bool = False) -> None:
    for path in paths:
        written = _writer(path, audio=audio)(report)
        with whole_file(path) as work:
            # half of a surrogate pair, which a JSON list may hold, has no UTF-8: it stays readable as \udc00
            work.write_bytes(written.encode("utf-8", "backslashreplace"))


def _writer(path: Path, *, audio: bool) -> Callable[[GateReport], str]:
    match path.suffix.lower():
        case ".md":
            from svtool.wer.markdown import summary

            return summary
        case ".xml":
            from svtool.wer.junit import suite

            return suite
        case ".json":
            return _json
        case _:
            from svtool.wer.html import page

            return lambda report: page(report, audio=audio)


def _json(report: GateReport) -> str:
    from svtool.wer.report import to_json

    return json.dumps(to_json(report), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
