"""The upload form of /api/recognize: one recording and a few words, or one sentence that says what is wrong.

Nothing that a client sends is passed over in silence: a field that is not known, comes twice or holds the wrong
thing is refused. Knows nothing of audio.
"""

from __future__ import annotations

import difflib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from svtool.errors import SvtoolError
from svtool.serving.answers import shown, too_large

if TYPE_CHECKING:
    from starlette.datastructures import FormData
    from starlette.requests import Request

FIELDS: dict[str, dict[str, Any]] = {
    "file": {
        "type": "string",
        "format": "binary",
        "description": "Any audio file; its content tells the format.",
    },
    "language": {
        "type": "string",
        "default": "auto",
        "description": "auto, zh, en, yue, ja or ko: a hint to the model.",
    },
    "itn": {
        "type": "boolean",
        "default": False,
        "description": "Punctuation, capitals and digits in the text.",
    },
}
REQUEST_BODY = {
    "required": True,
    "content": {
        "multipart/form-data": {"schema": {"type": "object", "properties": FIELDS, "required": ["file"]}}
    },
}

_HOW = "send multipart/form-data with the recording in the field 'file', as  curl -F file=@talk.wav  does"
_TRUE, _FALSE = {"true", "1", "yes", "on"}, {"false", "0", "no", "off"}
_MOST_PARTS = 16  # far more than the form has, and few enough that the excess can still be named
_MOST_TEXT_BYTES = 4096
_LONGEST_WORD = 100


class BadForm(SvtoolError):
    """The request holds no usable form. `param` is the field at fault, where there is one."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        status: int = 422,
        code: str = "invalid_parameter",
    ) -> None:
        super().__init__(message)
        self.param, self.status, self.code = param, status, code


@dataclass(frozen=True)
class Upload:
    data: bytes
    name: str  # as the client wrote it: for messages only
    language: str
    itn: bool


async def read_upload(request: Request, max_bytes: int) -> Upload:
    """Raises BadForm, or starlette's ClientDisconnect when the client leaves while it sends."""
    for name in request.query_params:
        raise BadForm(
            f"{shown(name)} stands in the address, where nothing is read: send it as a form field", param=name
        )
    form = await _parse(request)
    try:
        for name in form:
            _check_field(form, name)
        file = form.get("file")
        if file is None:
            raise BadForm(f"the field 'file' is missing: {_HOW}", param="file")
        if isinstance(file, str):
            raise BadForm(f"the field 'file' holds text instead of a file: {_HOW} (mind the @)", param="file")
        if (file.size or 0) > max_bytes:
            raise BadForm(too_large(max_bytes), param="file", status=413, code="file_too_large")
        return Upload(
            await file.read(), file.filename or "audio", _word(form, "language") or "auto", _itn(form)
        )
    finally:
        await form.close()


async def _parse(request: Request) -> FormData:
    from starlette.formparsers import MultiPartException, MultiPartParser

    class Parser(MultiPartParser):
        ended = False

        def on_end(self) -> None:
            self.ended = True

    async def whole() -> AsyncGenerator[bytes, None]:
        async for chunk in request.stream():
            yield chunk
        # a form that breaks off would otherwise pass for one with fewer fields
        if not parser.ended:
            raise BadForm(
                "the form ends before its closing boundary: the upload broke off, or its boundary is not the one "
                f"in the Content-Type header; {_HOW}",
                status=400,
                code="bad_request",
            )

    kind = request.headers.get("content-type", "")
    if kind.split(";")[0].strip().lower() != "multipart/form-data":
        raise BadForm(f"the request holds no upload form: {_HOW}", param="file")
    parser = Parser(
        request.headers,
        whole(),
        max_files=_MOST_PARTS,
        max_fields=_MOST_PARTS,
        max_part_size=_MOST_TEXT_BYTES,
    )
    try:
        return await parser.parse()
    except MultiPartException as error:
        raise BadForm(
            f"the form cannot be read, it is broken or has too many or too long fields: {_HOW}",
            status=400,
            code="bad_request",
        ) from error


def _check_field(form: FormData, name: str) -> None:
    if name not in FIELDS:
        close = difflib.get_close_matches(name.lower()[:_LONGEST_WORD], FIELDS, n=1)
        meant = f": did you mean {close[0]!r}?" if close else ""
        known = ", ".join(FIELDS)
        raise BadForm(f"unknown field {shown(name)}{meant} (known here: {known})", param=name[:_LONGEST_WORD])
    count = len(form.getlist(name))
    if count > 1:
        what = "one recording a request" if name == "file" else "it once"
        raise BadForm(f"the field {name!r} came {count} times: send {what}", param=name)


def _word(form: FormData, name: str) -> str:
    value = form.get(name, "")
    if not isinstance(value, str):
        raise BadForm(f"the field {name!r} holds a file: send it as text", param=name)
    if len(value) > _LONGEST_WORD:
        raise BadForm(f"the field {name!r} holds {len(value)} characters: it takes one word", param=name)
    return value.strip()


def _itn(form: FormData) -> bool:
    value = _word(form, "itn").lower()
    if value not in _TRUE | _FALSE | {""}:
        raise BadForm(f"itn is {shown(value)}: use true or false", param="itn")
    return value in _TRUE
