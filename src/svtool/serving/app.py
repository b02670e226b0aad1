"""The HTTP side: routes, request parameters, error bodies. Knows nothing of decoding, batching or Gradio.

Annotations here are objects, not strings: FastAPI reads them, and the names exist inside a function only.
"""

import asyncio
import importlib.util
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from svtool.errors import AudioError, MissingDependency, SvtoolError, UsageError
from svtool.serving.answers import CLIENT_GONE, error_body, shown
from svtool.serving.form import REQUEST_BODY, BadForm, read_upload
from svtool.serving.guard import FRAMING_BYTES, Guard
from svtool.serving.reference import reference_page
from svtool.serving.service import Recognition, Service
from svtool.serving.worker import Busy, Stopped

if TYPE_CHECKING:
    from pathlib import Path

    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse

_AUDIO_STATUS = {"too_long": 413, "not_audio": 415, "no_audio_stream": 415, "no_decoder": 415}
_REFERENCE_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

_DESCRIPTION = """\
Speech to text with SenseVoice. `rtf` is the time the request took, waiting included, per second of audio.
Segment times are in seconds and approximate: the model works in steps of 60 ms.
"""


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _of(kind: str, description: str = "") -> dict[str, Any]:
    return {"type": kind, **({"description": description} if description else {})}


_HEALTH = _object(
    status=_of("string", "ok or unhealthy (503): the engine's thread has died, restart the server."),
    engine=_of("string"),
    precision=_of("string"),
    runtime=_of("string"),
    provider=_of("string"),
    demonstration_model=_of("boolean", "One speaker and a small vocabulary."),
    queue=_object(
        requests=_of("integer", "Waiting now."),
        audio_seconds=_of("number"),
        limit=_of("integer", "Requests that may wait; beyond it the answer is 429."),
    ),
    in_flight=_of("integer", "Being decoded, waiting or running now."),
    worker=_object(alive=_of("boolean"), busy_s=_of("number", "Of the batch that runs; null when idle.")),
    last_success_age_s=_of("number", "Seconds; null before the first."),
    accepted=_of("integer", "Since the start, like all below: decoded and queued."),
    completed=_of("integer", "Answered with a text, or with no speech."),
    failed=_of("integer", "The server's fault (5xx)."),
    refused=_of("integer", "Not recognized, for either reason below; this alone is no sign of overload."),
    refused_because=_object(
        client_mistake=_of("integer", "No audio, broken, too long, a wrong form (4xx): the server is well."),
        server_busy=_of("integer", "No room (429): this one means overload."),
    ),
    abandoned=_of("integer", "The client left before its answer."),
)
_HEALTH_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {"schema": _HEALTH}}},
    503: {"description": "unhealthy", "content": {"application/json": {"schema": _HEALTH}}},
}


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
    reason: str | None  # why there is no text, in words
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
    from fastapi import FastAPI, Request
    from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse

    # FastAPI's own viewers load their scripts from a CDN
    app = FastAPI(title="svtool", description=_DESCRIPTION, docs_url=None, redoc_url=None)
    max_bytes = service.limits.file_bytes + FRAMING_BYTES
    app.add_middleware(
        Guard, max_bytes=max_bytes, check_room=service.check_room, on_refusal=service.count_refused
    )
    _add_error_answers(app)
    _add_recognize(app, service)

    @app.head("/health", include_in_schema=False)
    @app.get("/health", summary="What is served, and whether it works", responses=_HEALTH_ANSWERS)
    async def health() -> JSONResponse:
        state = service.health()
        return JSONResponse(state, status_code=200 if state["status"] == "ok" else 503)

    @app.head("/docs", include_in_schema=False)
    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> HTMLResponse:
        example = f"curl -F file=@talk.wav -F language=auto {request.url_for('recognize')}"
        page = reference_page(app.openapi(), example)
        return HTMLResponse(page, headers={"content-security-policy": _REFERENCE_POLICY})

    @app.get("/ui", include_in_schema=False)
    async def to_page() -> RedirectResponse:
        return RedirectResponse("/" if ui else "/docs")

    _close_own_paths(app)
    if ui:
        if page_folder is None:
            raise UsageError("the page needs a folder of its own: pass page_folder")
        from svtool.serving.page import mount_page

        _answer_unknown_paths(mount_page(app, service, page_folder))
        return app

    @app.get("/", include_in_schema=False)
    async def to_docs() -> RedirectResponse:
        return RedirectResponse("/docs")

    return app


class _Raise:
    """An ASGI endpoint that raises, for every method."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        self._status, self._headers = status, headers

    async def __call__(self, *_: Any) -> None:
        from starlette.exceptions import HTTPException

        raise HTTPException(self._status, headers=self._headers)


def _close_own_paths(app: "FastAPI") -> None:
    """Own paths answer a wrong method themselves, and /api an unknown path: the page behind them takes anything."""
    from starlette.routing import Route

    allowed: dict[str, set[str]] = {}
    for route in app.routes:
        if isinstance(route, Route):
            allowed.setdefault(route.path, set()).update(route.methods or ())
    closed = [
        Route(path, _Raise(405, {"allow": ", ".join(sorted(methods))})) for path, methods in allowed.items()
    ]
    app.router.routes.extend([*closed, Route("/api", _Raise(404)), Route("/api/{rest:path}", _Raise(404))])


def _answer_unknown_paths(page: "FastAPI") -> None:
    """What its scripts post keeps the page's own errors, which they read; everything else is answered as ours is."""
    from fastapi import Request
    from fastapi.exception_handlers import http_exception_handler
    from starlette.exceptions import HTTPException

    @page.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Any:
        if error.status_code in (404, 405) and error.detail == HTTPStatus(error.status_code).phrase:
            return _http_answer(request, error)
        if request.method in ("GET", "HEAD"):  # files and streams: no script reads an error's body there
            return _http_answer(request, error)
        return await http_exception_handler(request, error)


def _add_recognize(app: "FastAPI", service: Service) -> None:
    from fastapi import Request
    from fastapi.responses import JSONResponse
    from starlette.requests import ClientDisconnect

    answers: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorBody, "description": meaning}
        for status, meaning in {
            400: "broken form",
            405: "not POST",
            413: "upload or audio too long",
            415: "not audio",
            422: "bad parameter or broken audio",
            429: "busy, see Retry-After",
            500: "the engine failed",
            503: "stopping",
        }.items()
    }

    @app.post(
        "/api/recognize",
        response_model=RecognitionBody,
        responses=answers,
        summary="Transcribe one file",
        openapi_extra={"requestBody": REQUEST_BODY},
    )
    async def recognize(request: Request) -> Any:
        try:
            upload = await read_upload(request, service.limits.file_bytes)
        except ClientDisconnect:
            service.counts.abandoned += 1
            return JSONResponse(None, status_code=CLIENT_GONE)
        except BadForm:
            service.count_refused()
            raise
        work = service.recognize(upload.data, name=upload.name, language=upload.language, itn=upload.itn)
        done = await _while_connected(request, work)
        return _body(done) if done is not None else JSONResponse(None, status_code=CLIENT_GONE)


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
        reason=done.no_speech_reason,
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
        param = str(error.errors()[0]["loc"][-1])
        return _answer(
            422, "invalid_parameter", f"{shown(param)} is missing or wrong: see /docs", param=param
        )

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> "JSONResponse":
        return _http_answer(request, error)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> "JSONResponse":
        return _answer(500, "internal_error", "an unexpected error: the server's log has it")


def _http_answer(request: "Request", error: Any) -> "JSONResponse":
    """For starlette's HTTPException."""
    headers, message = dict(error.headers or {}), str(error.detail)
    if error.status_code == 404:
        message = "there is nothing at this path: /docs lists what there is"
    if error.status_code == 403:
        message = "what this path names may not be read"
    if error.status_code == 405:
        allowed = {name.lower(): value for name, value in headers.items()}.get("allow", "another method")
        message = f"this path does not take {shown(request.method)}: use {allowed}"
    return _answer(error.status_code, None, message, headers=headers)


def _failure(error: SvtoolError) -> "JSONResponse":
    if isinstance(error, AudioError):
        return _answer(_AUDIO_STATUS.get(error.reason, 422), error.reason, str(error), param="file")
    if isinstance(error, BadForm):
        return _answer(error.status, error.code, str(error), param=error.param)
    if isinstance(error, UsageError):
        return _answer(422, "invalid_parameter", str(error), param="language")
    if isinstance(error, Busy):
        return _answer(429, "server_busy", str(error), headers={"retry-after": str(error.retry_after_s)})
    if isinstance(error, Stopped):
        return _answer(503, "server_stopping", str(error), headers={"retry-after": "10"})
    return _answer(500, "engine_failure", str(error))


def _answer(
    status: int,
    code: str | None,
    message: str,
    *,
    param: str | None = None,
    headers: dict[str, str] | None = None,
) -> "JSONResponse":
    from fastapi.responses import JSONResponse

    return JSONResponse(
        error_body(status, message, code=code, param=param), status_code=status, headers=headers
    )
