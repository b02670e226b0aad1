"""ASGI middleware around everything: what is refused before its body is read, and what every answer must hold to.

Too large a body is 413, a full server 429; bytes are counted as they arrive as well, because a stream need not
declare its length. A request that the end of the server cuts off is 503. Pages may fetch nothing from elsewhere.
Knows nothing of routes but which of them cost work.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from svtool.serving.answers import error_json, too_large
from svtool.serving.worker import Busy, Stopped

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

FRAMING_BYTES = 65_536  # multipart boundaries, headers and form fields around the file itself
_WORK = "/api/"
_LINGER_S = 5.0
# the browser's own lock on what Gradio's scripts could still reach out for: fonts, CDNs, usage reports
_OWN_ORIGIN = b"default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'"


class Refusal(Protocol):
    def __call__(self, *, busy: bool) -> None: ...


class _TooLarge(Exception):
    pass


class Guard:
    """Answers 413 for a body over `max_bytes`, and 429 for work that `check_room` has no room for.

    `on_refusal` is called for each of them, with `busy` true for a 429.
    """

    def __init__(
        self,
        app: AsgiApp,
        max_bytes: int,
        check_room: Callable[[], None],
        on_refusal: Refusal = lambda *, busy: None,
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._check_room = check_room
        self._on_refusal = on_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if scope["method"] == "POST" and str(scope["path"]).startswith(_WORK):
            try:
                self._check_room()
            except Busy as busy:
                self._on_refusal(busy=True)
                headers = (("retry-after", str(busy.retry_after_s)),)
                return await self._reply(receive, send, 429, str(busy), "server_busy", headers)
        if _declared_length(scope) > self._max_bytes:
            return await self._refuse(receive, send)
        return await self._count(scope, receive, send)

    async def _count(self, scope: Scope, receive: Receive, send: Send) -> None:
        received, started = 0, False

        async def counted_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise _TooLarge
            return message

        async def watched_send(message: Message) -> None:
            nonlocal started
            # the application may turn _TooLarge into an answer of its own, which is not the one to give
            if received > self._max_bytes and not started:
                return
            if message["type"] == "http.response.start":
                started = True
                message = _locked_to_own_origin(message)
            await send(message)

        try:
            await self._app(scope, counted_receive, watched_send)
        except _TooLarge:
            pass
        except asyncio.CancelledError:
            # only the end of the server cancels a request; raised again, it would be logged as a crash
            await self._cut_off(send, started)
            return
        if received > self._max_bytes and not started:
            await self._refuse(receive, send)

    async def _refuse(self, receive: Receive, send: Send) -> None:
        self._on_refusal(busy=False)
        message = too_large(self._max_bytes - FRAMING_BYTES)
        await self._reply(receive, send, 413, message, "file_too_large")

    async def _cut_off(self, send: Send, started: bool) -> None:
        with contextlib.suppress(Exception):  # the client may be gone, or promised a length
            if not started:
                body = error_json(503, str(Stopped()))
                await send(_start(503, body, (("retry-after", "10"),)))
                await send({"type": "http.response.body", "body": body})
            else:
                await send({"type": "http.response.body", "body": b""})

    async def _reply(
        self,
        receive: Receive,
        send: Send,
        status: int,
        message: str,
        code: str,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        body = error_json(status, message, code=code)
        await send(_start(status, body, headers))
        await send({"type": "http.response.body", "body": body, "more_body": True})
        # closing with unread data resets the connection, and a client that still sends would never see the answer
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._discard(receive), _LINGER_S)
        await send({"type": "http.response.body", "body": b""})

    async def _discard(self, receive: Receive) -> None:
        """Read and forget the rest of a body, up to twice the limit."""
        left = 2 * self._max_bytes
        while left > 0:
            message = await receive()
            left -= len(message.get("body", b""))
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                return


def _start(status: int, body: bytes, headers: tuple[tuple[str, str], ...]) -> Message:
    own = (
        ("content-type", "application/json"),
        ("content-length", str(len(body))),
        ("connection", "close"),
    )
    raw = [(name.encode(), value.encode()) for name, value in (*own, *headers)]
    return {"type": "http.response.start", "status": status, "headers": raw}


def _locked_to_own_origin(message: Message) -> Message:
    headers = list(message.get("headers", ()))
    names = {name.lower(): value for name, value in headers}
    if not names.get(b"content-type", b"").startswith(b"text/html") or b"content-security-policy" in names:
        return message
    return {**message, "headers": [*headers, (b"content-security-policy", _OWN_ORIGIN)]}


def _declared_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0
