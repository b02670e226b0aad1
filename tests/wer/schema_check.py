"""As much of JSON Schema as `schema.json` uses, and stricter: a key that the schema does not describe is an error."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import svtool.wer

SCHEMA: dict[str, Any] = json.loads(
    (Path(svtool.wer.__file__).parent / "schema.json").read_text(encoding="utf-8")
)
_TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def errors(value: Any, schema: dict[str, Any] = SCHEMA, where: str = "report") -> list[str]:
    if "$ref" in schema:
        return errors(value, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], where)
    if "anyOf" in schema:
        found = [errors(value, one, where) for one in schema["anyOf"]]
        return [] if not all(found) else min(found, key=len)
    if "const" in schema and value != schema["const"]:
        return [f"{where} is {value!r}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where} is {value!r}"]
    if "type" in schema and not _is_of(value, schema["type"]):
        return [f"{where} is a {type(value).__name__}"]
    if isinstance(value, dict):
        return _of_object(value, schema, where)
    if isinstance(value, list):
        return [
            one for at, item in enumerate(value) for one in errors(item, schema["items"], f"{where}[{at}]")
        ]
    out = value is not None and not (
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
        if isinstance(value, int | float)
        else True
    )
    return [f"{where} is {value}"] if out else []


def _is_of(value: Any, named: str | list[str]) -> bool:
    names = [named] if isinstance(named, str) else named
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, _TYPES[name]) for name in names)


def _of_object(value: dict[str, Any], schema: dict[str, Any], where: str) -> list[str]:
    found = [f"{where} lacks {key}" for key in schema.get("required", ()) if key not in value]
    for key, item in value.items():
        described = _described(key, schema)
        if described is None:
            found.append(f"{where}.{key} is not described")
        else:
            found += errors(item, described, f"{where}.{key}")
    return found


def _described(key: str, schema: dict[str, Any]) -> dict[str, Any] | None:
    if key in schema.get("properties", {}):
        return schema["properties"][key]  # type: ignore[no-any-return]
    for pattern, of_it in schema.get("patternProperties", {}).items():
        if re.search(pattern, key):
            return of_it  # type: ignore[no-any-return]
    return schema.get("additionalProperties") or None
