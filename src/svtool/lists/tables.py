"""Lists with one utterance on each line: JSONL, and TSV or CSV with a header."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from svtool.errors import SvtoolError, counted
from svtool.lists.common import Entry, Fault, Listing, fault, lines, read_text

_JSON = (".jsonl", ".json", ".ndjson")
SUFFIXES = (*_JSON, ".tsv", ".csv")
AUDIO_COLUMNS = ("audio", "audio_filepath", "source", "path", "wav", "file")


def read(path: Path, _audio: Path) -> Listing:
    text = read_text(path)
    suffix = path.suffix.lower()
    header = text.lstrip()[:1]
    malformed: list[str] = []
    if suffix in _JSON or (suffix not in (".tsv", ".csv") and header == "{"):
        return _listing("JSONL", list(_json_entries(path, text, malformed)), malformed)
    delimiter = _delimiter(text.lstrip().partition("\n")[0], suffix)
    named = {"\t": "TSV", ",": "CSV"}.get(delimiter, f"CSV with {delimiter}")
    return _listing(named, list(_table_entries(path, text, delimiter, malformed)), malformed)


def _listing(form: str, entries: list[Entry], malformed: list[str]) -> Listing:
    return Listing(form, tuple(entries), tuple(malformed_fault(malformed)))


def malformed_fault(messages: list[str]) -> Iterator[Fault]:
    return fault("malformed", "malformed line", messages)


def _json_entries(path: Path, text: str, malformed: list[str]) -> Iterator[Entry]:
    for number, line in lines(text):
        place = f"{path}, line {number}"
        try:
            entry = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            malformed.append(f"{place}: not valid JSON ({error}); a list has one object on each line")
            continue
        if isinstance(entry, dict):
            yield place, entry
        else:
            malformed.append(f"{place}: not a JSON object; a list has one object on each line")


def _delimiter(header: str, suffix: str) -> str:
    if suffix == ".tsv" or (suffix != ".csv" and "\t" in header):
        return "\t"
    # Excel writes semicolons where the comma is the decimal sign
    return ";" if ";" in header and "," not in header else ","


def _table_entries(path: Path, text: str, delimiter: str, malformed: list[str]) -> Iterator[Entry]:
    # quotes in TSV files are plain characters (Common Voice), in CSV they quote
    quoting: Literal[0, 3] = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting)
    header: list[str] | None = None
    try:
        for cells in reader:
            place = f"{path}, line {reader.line_num}"
            if not any(cells):
                continue
            if header is None:
                header = _header(cells, path)
            elif len(cells) > len(header):
                named = counted(len(header), "column")
                malformed.append(f"{place}: {counted(len(cells), 'cell')}, but the header names {named}")
            else:
                row: dict[str, Any] = dict(zip(header, cells, strict=False))
                yield place, row
    except csv.Error as error:
        malformed.append(f"{path}, line {reader.line_num}: {error}")


def _header(cells: list[str], path: Path) -> list[str]:
    names = [cell.strip().lower() for cell in cells]
    if not any(name in AUDIO_COLUMNS for name in names):
        raise SvtoolError(
            f"{path}: the first line names no audio column ({', '.join(cells[:8])}); "
            f"a table needs a header with one of {', '.join(AUDIO_COLUMNS)}"
        )
    return names
