"""The one shape of every answer that is no success. Knows nothing of FastAPI, routes or audio."""

from __future__ import annotations

import json
from typing import Any

CLIENT_GONE = 499  # what proxies log for it; nobody reads the answer

_CODES = {
    400: "bad_request",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "file_too_large",
    CLIENT_GONE: "client_gone",
    500: "internal_error",
    503: "server_stopping",
}


def error_body(
    status: int, message: str, *, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    kind = (
        "rate_limit_error" if status == 429 else "server_error" if status >= 500 else "invalid_request_error"
    )
    code = code or _CODES.get(status, "http_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_json(status: int, message: str, *, code: str | None = None) -> bytes:
    return json.dumps(error_body(status, message, code=code), ensure_ascii=False).encode()


def too_large(limit_bytes: int) -> str:
    return f"the upload is larger than the limit of {limit_bytes / 1e6:g} MB"


def shown(name: str, length: int = 40) -> str:
    """A client's word as part of a message: quoted, escaped, short."""
    return ascii(name) if len(name) <= length else ascii(name[:length]) + "..."
