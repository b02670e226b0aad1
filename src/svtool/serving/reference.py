"""The page at /docs: the API's own description as plain HTML, with nothing to fetch from anywhere.

Reads an OpenAPI document; knows nothing of FastAPI or of the routes themselves.
"""

from __future__ import annotations

from html import escape
from typing import Any

_STYLE = """\
:root { color-scheme: light dark; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 860px; margin: 0 auto; padding: 24px 20px 48px; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.2em; } h3 { font-size: 0.9rem; margin-bottom: 0; }
code, pre { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 0.9em; }
pre { padding: 10px 14px; overflow-x: auto; background: #8882; border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-size: 0.95em; }
td { border-bottom: 1px solid #8884; padding: 5px 14px 5px 0; vertical-align: top; }
td:first-child { white-space: nowrap; width: 1%; }
"""


def reference_page(schema: dict[str, Any], example: str) -> str:
    """`schema`: an OpenAPI document. `example`: a command to show first."""
    info = schema["info"]
    calls = [
        _call(schema, method.upper(), path, call)
        for path, methods in schema["paths"].items()
        for method, call in methods.items()
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(info["title"])} API</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>{escape(info['title'])} API</h1><p>{escape(info.get('description', ''))}</p>"
        f"<pre>{escape(example)}</pre>{''.join(calls)}"
        '<p>The same for programs: <a href="openapi.json">openapi.json</a></p></body></html>'
    )


def _call(schema: dict[str, Any], method: str, path: str, call: dict[str, Any]) -> str:
    answers = call["responses"]
    success: dict[str, Any] = next((one for status, one in answers.items() if status.startswith("2")), {})
    refusals = {status: one for status, one in answers.items() if not status.startswith("2")}
    refusal: dict[str, Any] = next(iter(refusals.values()), {})
    statuses = [(status, escape(one["description"])) for status, one in refusals.items()]
    return (
        f"<h2><code>{method} {escape(path)}</code> {escape(call.get('summary', ''))}</h2>"
        + _section("Form fields (multipart/form-data)", _rows(schema, call.get("requestBody", {})))
        + _section("Answer (JSON)", _rows(schema, success))
        + _section("Other answers", statuses)
        + _section("Their body (JSON)", _rows(schema, refusal))
    )


def _section(title: str, rows: list[tuple[str, str]]) -> str:
    body = "".join(f"<tr><td><code>{name}</code></td><td>{text}</td></tr>" for name, text in rows)
    return f"<h3>{title}</h3><table>{body}</table>" if rows else ""


def _rows(schema: dict[str, Any], holder: dict[str, Any]) -> list[tuple[str, str]]:
    """Name and meaning of every property in the first content type of a request body or an answer."""
    content: dict[str, Any] = next(iter(holder.get("content", {}).values()), {})
    return _properties(schema, content.get("schema", {}), "")


def _properties(schema: dict[str, Any], kind: dict[str, Any], prefix: str) -> list[tuple[str, str]]:
    rows = []
    kind = _resolved(schema, kind)
    for name, given in kind.get("properties", {}).items():
        one = _resolved(schema, given)
        facts = [_type(schema, one)]
        if "default" in one:
            facts.append(f"default {str(one['default']).lower()}")
        elif name in kind.get("required", ()) and "description" in one:
            facts.append("required")
        meaning = f"{', '.join(facts)}. {one.get('description', '')}"
        rows.append((escape(prefix + name), escape(meaning)))
        inner, mark = (one["items"], "[].") if "items" in one else (one, ".")
        rows += _properties(schema, inner, f"{prefix}{name}{mark}")
    return rows


def _type(schema: dict[str, Any], kind: dict[str, Any]) -> str:
    if "anyOf" in kind:
        return " or ".join(_type(schema, _resolved(schema, one)) for one in kind["anyOf"])
    if kind.get("format") == "binary":
        return "file"
    if "items" in kind:
        return f"list of {_type(schema, _resolved(schema, kind['items']))}"
    return str(kind.get("type", "any"))


def _resolved(schema: dict[str, Any], kind: dict[str, Any]) -> dict[str, Any]:
    """`kind`, or what its `$ref` stands for."""
    for step in str(kind.get("$ref", "")).removeprefix("#/").split("/") if "$ref" in kind else ():
        schema = schema[step]
    return schema if "$ref" in kind else kind
