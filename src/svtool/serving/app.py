"""The HTTP side: routes, request parameters, error bodies. Knows nothing of decoding, batching or Gradio.

Annotations here are objects, not strings: FastAPI reads them, and the names exist inside a function only.
"""

import asyncio
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from svtool.errors import AudioError, MissingDependency, SvtoolError, UsageError
from svtool.serving.guard import FRAMING_BYTES, Guard
from svtool.serving.service import Recognition, Service
from svtool.serving.worker import Busy, Stopped

if TYPE_CHECKING:
    from pathlib import Path

    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse

_AUDIO_STATUS = {"too_long": 413, "not_audio": 415, "no_audio_stream": 415, "no_decoder": 415}
_HTTP_CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "file_too_large"}
_CLIENT_GONE = 499  # what proxies log for it; nobody reads the answer

_DESCRIPTION = """\
Speech to text with SenseVoice. `rtf` is the time the request took, waiting included, per second of audio.
Segment times are in seconds and approximate: the model works in steps of 60 ms.
"""


@dataclass(frozen=True)
class SegmentBody:
    text: str
    start: float
    end: float


@dataclass(frozen=True)
class RecognitionBody:
    """The answer of /api/recognize. `duration` and the segments' times are seconds."""

    text: str
    language: str | None
    emotion: str | None
    events: list[str]
    duration: float
    rtf: float | None
    no_speech: bool
    segments: list[SegmentBody]
    warnings: list[str]


@dataclass(frozen=True)
class ErrorDetail:
    message: str
    type: str
    param: str | None
    code: str


@dataclass(frozen=True)
class ErrorBody:
    error: ErrorDetail


def require_serving_libraries(*, ui: bool) -> None:
    """Raises MissingDependency, naming what is missing, before anything slow begins."""
    wanted = ["fastapi", "uvicorn", "python_multipart", *(["gradio"] if ui else [])]
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependency("svtool serve", " and ".join(missing), "serve")


def create_app(service: Service, *, ui: bool = True, page_folder: "Path | None" = None) -> "FastAPI":
    """The application: API, health, docs, and with `ui` the page, mounted last so that it shadows no route.

    `page_folder` is an empty private folder for what the page stores; it is required with `ui`.
    """
    require_serving_libraries(ui=ui)
    from fastapi import FastAPI
    from fastapi.responses import JSONResponse, RedirectResponse

    app = FastAPI(title="svtool", description=_DESCRIPTION)
    max_bytes = service.limits.file_bytes + FRAMING_BYTES
    app.add_middleware(Guard, max_bytes=max_bytes, check_room=service.check_room)
    _add_error_answers(app)
    _add_recognize(app, service)

    @app.get("/health", summary="What is served, and whether it works")
    async def health() -> JSONResponse:
        state = service.health()
        return JSONResponse(state, status_code=200 if state["status"] == "ok" else 503)

    @app.get("/ui", include_in_schema=False)
    async def to_page() -> RedirectResponse:
        return RedirectResponse("/" if ui else "/docs")

    if ui:
        if page_folder is None:
            raise UsageError("the page needs a folder of its own: pass page_folder")
        from svtool.serving.page import mount_page

        mount_page(app, service, page_folder)
        return app

    @app.get("/", include_in_schema=False)
    async def to_docs() -> RedirectResponse:
        return RedirectResponse("/docs")

    return app


def _add_recognize(app: "FastAPI", service: Service) -> None:
    from fastapi import File, Form, Request, UploadFile
    from fastapi.responses import JSONResponse

    answers: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorBody, "description": meaning}
        for status, meaning in {
            413: "upload or audio too long",
            415: "not audio",
            422: "bad parameter or broken audio",
            429: "busy, see Retry-After",
            500: "the engine failed",
            503: "stopping",
        }.items()
    }

    @app.post(
        "/api/recognize", response_model=RecognitionBody, responses=answers, summary="Transcribe one file"
    )
    async def recognize(
        request: Request,
        file: Annotated[UploadFile, File(description="Any audio file; its content tells the format.")],
        language: Annotated[
            str, Form(description="auto, zh, en, yue, ja or ko: a hint to the model")
        ] = "auto",
        itn: Annotated[bool, Form(description="Punctuation, capitals and digits in the text")] = False,
    ) -> Any:
        data = await file.read()
        if len(data) > service.limits.file_bytes:
            limit = f"{service.limits.file_bytes / 1e6:g} MB"
            return _answer(413, "file_too_large", f"the upload is larger than the limit of {limit}")
        work = service.recognize(data, name=file.filename or "audio", language=language, itn=itn)
        done = await _while_connected(request, work)
        return _body(done) if done is not None else JSONResponse(None, status_code=_CLIENT_GONE)


async def _while_connected(request: "Request", work: Any) -> Recognition | None:
    """The result of `work`, or None after cancelling it because the client has gone."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(
        request.receive()
    )  # the body has been read: the next message is the disconnect
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)  # out of the queue before the answer


def _body(done: Recognition) -> RecognitionBody:
    heard = done.transcript
    return RecognitionBody(
        text=heard.text,
        language=heard.language,
        emotion=heard.emotion,
        events=list(heard.events),
        duration=round(heard.duration_s, 3),
        rtf=None if done.rtf is None else round(done.rtf, 5),
        no_speech=heard.no_speech,
        segments=[
            SegmentBody(one.text, round(one.start_s, 3), round(one.end_s, 3)) for one in heard.segments
        ],
        warnings=list(done.warnings),
    )


def _add_error_answers(app: "FastAPI") -> None:
    from fastapi import Request
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    @app.exception_handler(SvtoolError)
    async def ours(_: Request, error: SvtoolError) -> "JSONResponse":
        return _failure(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> "JSONResponse":
        first = error.errors()[0]
        param = str(first["loc"][-1])
        return _answer(422, "invalid_parameter", f"{param}: {first['msg']}", param=param)

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> "JSONResponse":
        code = _HTTP_CODES.get(error.status_code, "http_error")
        return _answer(error.status_code, code, str(error.detail), headers=dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> "JSONResponse":
        return _answer(500, "internal_error", "an unexpected error: the server's log has it")


def _failure(error: SvtoolError) -> "JSONResponse":
    if isinstance(error, AudioError):
        return _answer(_AUDIO_STATUS.get(error.reason, 422), error.reason, str(error), param="file")
    if isinstance(error, UsageError):
        return _answer(422, "invalid_parameter", str(error), param="language")
    if isinstance(error, Busy):
        return _answer(429, "server_busy", str(error), headers={"retry-after": str(error.retry_after_s)})
    if isinstance(error, Stopped):
        return _answer(503, "server_stopping", str(error), headers={"retry-after": "10"})
    return _answer(500, "engine_failure", str(error))


def _answer(
    status: int, code: str, message: str, *, param: str | None = None, headers: dict[str, str] | None = None
) -> "JSONResponse":
    from fastapi.responses import JSONResponse

    kind = (
        "rate_limit_error" if status == 429 else "server_error" if status >= 500 else "invalid_request_error"
    )
    error = {"message": message, "type": kind, "param": param, "code": code}
    return JSONResponse({"error": error}, status_code=status, headers=headers)
