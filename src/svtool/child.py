"""Runs one function of svtool in a child process that can be ended at any moment.

Native builds and long ONNX Runtime calls do not listen to Ctrl-C; a process does. Progress, the result and errors
come back as JSON lines. Knows nothing of what the function does.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any

from svtool import errors
from svtool.progress import Progress

_TICK_S = 0.5
_TAIL_LINES = 15


@dataclass(frozen=True)
class Finished:
    value: dict[str, Any]
    wall_s: float
    peak_rss_bytes: int


def run_child(
    target: str,
    payload: Mapping[str, Any],
    progress: Progress,
    *,
    tick: Callable[[float], None] | None = None,
) -> Finished:
    """Call `svtool.<module>:<function>(payload, progress)` in a child and wait for what it returns.

    `tick(seconds since the start)` is called about twice a second. On any exception here, Ctrl-C included, the
    child is killed before the exception goes on. An SvtoolError of the child is raised here as the same class.
    """
    started = time.monotonic()
    with tempfile.TemporaryFile() as noise:
        child = _start(target, noise)
        lines: queue.Queue[bytes | None] = queue.Queue()
        threading.Thread(target=_pump, args=(child.stdout, lines), daemon=True).start()
        try:
            _send(child.stdin, payload)
            final = _relay(lines, progress, tick, started)
            child.wait(timeout=30)
        finally:
            if child.poll() is None:
                child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()
        if "result" in final:
            return Finished(final["result"], time.monotonic() - started, final["peak_rss_bytes"])
        raise _rebuilt(final, target, child.returncode, noise)


def main() -> None:
    """The child's side. The parent holds our stdin open; when it goes, so do we."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # native libraries print to stdout, which carries our events
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to us too; the parent decides
    payload = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    module, _, function = sys.argv[1].partition(":")
    progress = _PipeProgress(events)
    try:
        result = getattr(importlib.import_module(f"svtool.{module}"), function)(payload, progress)
        progress.emit(result=result, peak_rss_bytes=_peak_rss_bytes())
    except errors.SvtoolError as error:
        progress.emit(error=type(error).__name__, message=str(error), reason=getattr(error, "reason", None))
    except MemoryError:
        progress.emit(error="SvtoolError", message="out of memory", reason=None)
    except Exception:  # noqa: BLE001 - the parent raises it
        traceback.print_exc()
        progress.emit(error=None, message=traceback.format_exc().strip().splitlines()[-1], reason=None)
    # native libraries may crash or hang while they are torn down; everything that matters is flushed
    events.flush()
    os._exit(0)


class _PipeProgress:
    def __init__(self, events: IO[str]) -> None:
        self._events = events
        self._lock = threading.Lock()

    def emit(self, **event: Any) -> None:
        with self._lock:
            self._events.write(json.dumps(event) + "\n")
            self._events.flush()

    def stage(self, name: str, total: float | None = None) -> None:
        self.emit(stage=name, total=total)

    def advance(self, amount: float = 1.0) -> None:
        self.emit(advance=amount)

    def note(self, message: str) -> None:
        self.emit(note=message)


def _start(target: str, noise: IO[bytes]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "svtool.child", target]
    # the working folder must not be able to shadow a library
    environment = os.environ | {"PYTHONSAFEPATH": "1"}
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=noise, env=environment
    )


def _send(pipe: IO[bytes] | None, payload: Mapping[str, Any]) -> None:
    assert pipe is not None
    # a child that died at once is reported by its exit, not by the broken pipe
    with contextlib.suppress(BrokenPipeError):
        pipe.write(json.dumps(payload).encode() + b"\n")
        pipe.flush()


def _pump(pipe: IO[bytes] | None, lines: queue.Queue[bytes | None]) -> None:
    assert pipe is not None
    with contextlib.suppress(ValueError, OSError):
        for line in pipe:
            lines.put(line)
    lines.put(None)


def _relay(
    lines: queue.Queue[bytes | None], progress: Progress, tick: Callable[[float], None] | None, started: float
) -> dict[str, Any]:
    """Pass progress on until the child says how it ended; {} when it never does."""
    while True:
        try:
            line = lines.get(timeout=_TICK_S)
        except queue.Empty:
            line = b""
        if tick is not None:
            tick(time.monotonic() - started)
        if line is None:
            return {}
        try:
            event: dict[str, Any] = json.loads(line) if line else {}
        except ValueError:  # half a line: the child crashed while writing it
            return {}
        if "result" in event or "error" in event:
            return event
        if "stage" in event:
            progress.stage(event["stage"], event["total"])
        elif "advance" in event:
            progress.advance(event["advance"])
        elif "note" in event:
            progress.note(event["note"])


def _rebuilt(final: Mapping[str, Any], target: str, code: int, noise: IO[bytes]) -> errors.SvtoolError:
    kind = getattr(errors, final.get("error") or "", None)
    if kind is not None:
        error: errors.SvtoolError = kind.__new__(kind)
        Exception.__init__(error, final["message"])
        if final.get("reason"):
            error.__dict__["reason"] = final["reason"]
        return error
    noise.seek(0)
    tail = noise.read().decode(errors="replace").strip().splitlines()[-_TAIL_LINES:]
    ended = final.get("message") or (f"was ended by signal {-code}" if code < 0 else f"exited with {code}")
    hint = " (out of memory?)" if code == -9 else ""
    return errors.SvtoolError("\n".join([f"the child process of {target} failed: {ended}{hint}", *tail]))


def _leave_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def _peak_rss_bytes() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    main()
