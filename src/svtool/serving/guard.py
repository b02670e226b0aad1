"""ASGI middleware that refuses a request before its body is read: too large, or the server is full.

Counts the bytes that arrive as well, because a stream need not declare its length. Knows nothing of routes but
which of them cost work.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from svtool.serving.worker import Busy

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

FRAMING_BYTES = 65_536  # multipart boundaries, headers and form fields around the file itself
_WORK = "/api/"
_LINGER_S = 5.0


class _TooLarge(Exception):
    pass


class Guard:
    """Answers 413 for a body over `max_bytes`, and 429 for work that `check_room` has no room for."""

    def __init__(self, app: AsgiApp, max_bytes: int, check_room: Callable[[], None]) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._check_room = check_room

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if scope["method"] == "POST" and str(scope["path"]).startswith(_WORK):
            try:
                self._check_room()
            except Busy as busy:
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
            started = True
            await send(message)

        with contextlib.suppress(_TooLarge):
            await self._app(scope, counted_receive, watched_send)
        if received > self._max_bytes and not started:
            await self._refuse(receive, send)

    async def _refuse(self, receive: Receive, send: Send) -> None:
        limit = f"{(self._max_bytes - FRAMING_BYTES) / 1e6:g} MB"
        message = f"the upload is larger than the limit of {limit}"
        await self._reply(receive, send, 413, message, "file_too_large")

    async def _reply(
        self,
        receive: Receive,
        send: Send,
        status: int,
        message: str,
        code: str,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        kind = "rate_limit_error" if status == 429 else "invalid_request_error"
        body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()
        own = (
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        )
        raw = [(name.encode(), value.encode()) for name, value in (*own, *headers)]
        await send({"type": "http.response.start", "status": status, "headers": raw})
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


def _declared_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0
