"""`svtool serve`: opens an engine, warms it, and runs the HTTP server until it is told to stop."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svtool.config import load_config
from svtool.errors import SvtoolError, UsageError
from svtool.progress import Progress, Silent
from svtool.serving.app import create_app, require_serving_libraries
from svtool.serving.scratch import scratch_folder
from svtool.serving.service import RequestLimits, Service, describe, warm
from svtool.serving.worker import QueueLimits, Worker

if TYPE_CHECKING:
    from fastapi import FastAPI

    from svtool.config import OrtConfig
    from svtool.recognizer import Recognizer

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 7860
_HOSTS = f"use {DEFAULT_HOST} for this machine alone, or 0.0.0.0 for every address it has"
_DRAIN_S = 4.0  # for requests that run when the server is told to stop; the rest is answered 503
_GRACE_S = 6  # the end of everything, should a connection still hang then


class _Terminated(BaseException):
    """SIGTERM: as clean an end as Ctrl-C, but no interruption to report."""


def serve(
    artifact: Path,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    ui: bool = True,
    device: str = "auto",
    threads: int | None = None,
    max_upload_mb: float = 25.0,
    max_duration_s: float = 600.0,
    queue_size: int = 64,
    config: Path | None = None,
    progress: Progress | None = None,
) -> None:
    """Serve one artifact until SIGTERM (returns) or Ctrl-C (KeyboardInterrupt, after a clean stop).

    Raises SvtoolError when the port is taken, MissingDependency without the serving libraries.
    """
    progress = progress or Silent()
    require_serving_libraries(ui=ui)
    settings = load_config(config).onnxruntime if config is not None else None
    limits = RequestLimits(
        int(max_upload_mb * 1e6), max_duration_s, in_flight=queue_size + QueueLimits.batch_n
    )
    with ExitStack() as stack, _sigterm_ends():
        try:
            # first of all: a taken port should not cost the loading of a model
            listener = stack.enter_context(_bind(host, port))
            if not _is_loopback(listener):
                progress.note(
                    f"warning: {host} can be reached from other machines, and there is no password: anyone who "
                    f"reaches this port can use the server; use --host {DEFAULT_HOST} to keep it to this machine"
                )
            queue = QueueLimits(waiting_n=queue_size)
            service = _open(artifact, device, threads, settings, queue, limits, progress)
            stack.callback(service.close)
            if ui:
                progress.note("loading the page")
            folder = stack.enter_context(scratch_folder()) if ui else None
            app = create_app(service, ui=ui, page_folder=folder)
            with _usable(host, port):
                listener.listen(128)  # only now: until the engine is warm a connection is refused
            _announce(listener, host, progress)
            _run(app, listener, service)
        except _Terminated:
            progress.note("stopped")


def _open(
    artifact: Path,
    device: str,
    threads: int | None,
    settings: OrtConfig | None,
    queue: QueueLimits,
    limits: RequestLimits,
    progress: Progress,
) -> Service:
    from svtool.recognizer import check_artifact, open_recognizer

    opened: list[Recognizer] = []

    def opener() -> Recognizer:
        recognizer = open_recognizer(artifact, device=device, threads=threads, settings=settings)
        warm(recognizer)
        opened.append(recognizer)
        return recognizer

    check_artifact(artifact)
    progress.note(f"loading {artifact}")
    worker = Worker(opener, queue)
    worker.start()
    engine = describe(opened[0], artifact)
    progress.note(f"engine: {engine.name}, {engine.precision}, {engine.provider}")
    if engine.is_tiny:
        progress.note(
            "this is the embedded demonstration model: one speaker and a small vocabulary, not your voice"
        )
    return Service(worker, engine, limits)


def _announce(listener: socket.socket, host: str, progress: Progress) -> None:
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listener.getsockname()[1]}"
    progress.note(
        f"serving on {address}  (Ctrl-C stops it; API: POST {address}/api/recognize, docs: {address}/docs)"
    )


def _run(app: FastAPI, listener: socket.socket, service: Service) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            ending = asyncio.ensure_future(self._drain())
            await super().shutdown(sockets)
            ending.cancel()

        async def _drain(self) -> None:
            await service.drain(_DRAIN_S)
            await asyncio.sleep(0.3)  # for answers on their way out
            # what is left is no recognition: an upload that still comes in, or an open page, which never ends
            for task in list(self.server_state.tasks):
                task.cancel()

    # it reports every broken form, which is the client's business and in the client's answer
    logging.getLogger("python_multipart").addHandler(logging.NullHandler())
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=_GRACE_S
    )
    # uvicorn stops cleanly on either signal and then raises it again, for the handlers around it
    Server(config).run(sockets=[listener])


def _bind(host: str, port: int) -> socket.socket:
    """A bound socket, not listening yet. Port 0 lets the system choose."""
    if not 0 <= port <= 65535:
        raise UsageError(f"port {port} is outside 0 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError, ValueError) as error:
        raise UsageError(f"--host {host} names no address: {_HOSTS}") from error
    with ExitStack() as stack, _usable(host, port):
        listener = stack.enter_context(socket.socket(family, kind, protocol))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        stack.pop_all()
        return listener


@contextmanager
def _usable(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_listen(host, port, error) from error


def cannot_listen(host: str, port: int, error: OSError) -> SvtoolError:
    """What to tell someone whose --host and --port the system turned down."""
    if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
        return UsageError(f"--host {host} is not an address of this machine: {_HOSTS}")
    if error.errno == errno.EADDRINUSE:
        return SvtoolError(f"port {port} on {host} is in use: stop what uses it, or choose another --port")
    if error.errno in (errno.EACCES, errno.EPERM):
        return SvtoolError(
            f"port {port} on {host} needs rights that this user does not have: choose a --port of 1024 or more"
        )
    return SvtoolError(
        f"port {port} on {host} cannot be used ({error.strerror}): choose another --host or --port"
    )


def _is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(str(listener.getsockname()[0]).split("%")[0]).is_loopback


@contextmanager
def _sigterm_ends() -> Iterator[None]:
    def end(*_: Any) -> None:
        raise _Terminated

    try:
        before: Callable[..., Any] | int | None = signal.signal(signal.SIGTERM, end)
    except ValueError:  # not the main thread: whoever runs it there ends it
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
