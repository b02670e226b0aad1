"""Files that people hand us: what one looks like when it is not what it should be, and where a text file is broken.

Every failure is one sentence that says where the damage is and what to do. Knows no tensors and no settings.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from svtool.errors import ArtifactError

_HEAD_BYTES = 4096
_TEXT = frozenset(range(32, 127)) | frozenset(b"\t\n\r\f") | frozenset(range(128, 256))
_PACKED = {
    b"\x1f\x8b": "a gzip archive",
    b"BZh": "a bzip2 archive",
    b"\xfd7zXZ\x00": "an xz archive",
    b"7z\xbc\xaf\x27\x1c": "a 7-Zip archive",
    b"Rar!": "a RAR archive",
    b"\x28\xb5\x2f\xfd": "a Zstandard archive",
}
_MODELS = {b"GGUF": "a GGUF model", b"\x89HDF": "an HDF5 file", b"\x93NUMPY": "a NumPy array"}
AGAIN = "copy or download it again"


def stranger(path: Path, *, text: bool = False, remedy: str | None = None) -> str | None:
    """What the file plainly is instead, as "is ...: next step"; None when its first bytes say nothing.

    `text` = the file should be text, so that being text is no fault. `remedy` = how to have the right file, for one
    that is not of a checkpoint's release.
    """
    again = remedy or AGAIN
    with path.open("rb") as stream:
        head = stream.read(_HEAD_BYTES)
    if not head:
        return f"is empty: {again}"
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the file itself: run  git lfs pull  where it was cloned"
    if start.startswith((b"<!doctype html", b"<html")):
        return f"is an HTML page, as a failed download leaves: {again}"
    if not any(head):
        return f"holds nothing but zeros at its start, as an unfinished download leaves: {again}"
    for magic, name in _PACKED.items():
        if head.startswith(magic):
            return f"is {name}: unpack it first"
    if text:
        return None
    for magic, name in _MODELS.items():
        if head.startswith(magic):
            return f"is {name}: {remedy or 'take the file of the PyTorch release'}"
    if head[8:9] == b"{" and b'"dtype"' in head and int.from_bytes(head[:8], "little") < 1 << 27:
        convert = "load it with safetensors.torch.load_file and torch.save the result"
        return f"is a safetensors file: {remedy or convert}"
    if _is_text(head):
        first = head.decode("utf-8", "replace").split("\n", 1)[0].strip()
        return f"is a text file ({_short(first)!r}): {again}"
    return None


def begins_as_zip(path: Path) -> bool:
    """Whether a file that is no whole zip archive was to be one."""
    with path.open("rb") as stream:
        return stream.read(4) == b"PK\x03\x04"


def read_text(path: Path, remedy: str) -> str:
    """The whole file as UTF-8. Raises ArtifactError with the line and column of the first byte that is not."""
    if found := stranger(path, text=True):
        raise ArtifactError(f"{path} {found}")
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise ArtifactError(f"{path} is UTF-16 text: save it as UTF-8") from error
        good = data[: error.start].decode("utf-8-sig", "replace")
        raise _broken(path, *_place(good), f"byte 0x{data[error.start]:02x} is not UTF-8", remedy) from error


def read_json(path: Path, remedy: str) -> Any:
    text = read_text(path, remedy)
    try:
        return _parsed(path, json.loads, text, remedy)
    except json.JSONDecodeError as error:
        raise _broken(path, error.lineno, error.colno, error.msg, remedy) from error


def read_yaml(path: Path, remedy: str) -> Any:
    import yaml

    text = read_text(path, remedy)
    try:
        return _parsed(path, yaml.safe_load, text, remedy)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        raise _broken(path, line, column, error.problem or "not YAML", remedy) from error
    except yaml.reader.ReaderError as error:
        said = f"character {error.character:#04x} is not allowed"
        raise _broken(path, *_place(text[: error.position]), said, remedy) from error
    except ValueError as error:  # a date such as 2024-13-45 ends in Python's own words
        raise ArtifactError(f"{path} holds a value that YAML cannot mean ({error}): {remedy}") from error


def read_toml(path: Path, remedy: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    text = read_text(path, remedy) if path.stat().st_size else ""  # an empty file leaves every default
    try:
        loaded: dict[str, Any] = _parsed(path, tomllib.loads, text, remedy)
    except tomllib.TOMLDecodeError as error:
        # its text ends in "(at line 3, column 5)" or "(at end of document)"
        raise ArtifactError(f"{path} is not a TOML file: {error}; {remedy}") from error
    return loaded


def _parsed(path: Path, parse: Callable[[str], Any], text: str, remedy: str) -> Any:
    try:
        return parse(text)
    except RecursionError as error:
        raise ArtifactError(f"{path} is nested too deeply to be read: {remedy}") from error


def _broken(path: Path, line: int, column: int, said: str, remedy: str) -> ArtifactError:
    return ArtifactError(f"{path} is broken at line {line}, column {column} ({said}): {remedy}")


def _place(before: str) -> tuple[int, int]:
    """Line and column, from 1, of what follows `before`."""
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def _is_text(head: bytes) -> bool:
    if not _TEXT.issuperset(head):
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return (
            error.start > len(head) - 4 and len(head) == _HEAD_BYTES
        )  # a character cut by the end of the head
    return True


def _short(text: str, most: int = 40) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
