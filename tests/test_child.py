from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import child_modules
from svtool.child import run_child
from svtool.errors import ArtifactError, SvtoolError
from svtool.progress import Silent

PROBE = """
import json, os, sys, time
from svtool.errors import ArtifactError

def answer(payload, progress):
    progress.stage("thinking", 2); progress.advance(); progress.note("half way")
    print("native noise on stdout")
    return {"doubled": payload["number"] * 2}

def refuse(payload, progress):
    raise ArtifactError("model.onnx is foreign")

def crash(payload, progress):
    print("last words", file=sys.stderr, flush=True)
    os.abort()

def fail(payload, progress):
    return {}["absent"]

def sleep(payload, progress):
    progress.note(str(os.getpid()))
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _probe_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child_modules.add(PROBE, tmp_path, monkeypatch)


class Seen(Silent):
    def __init__(self) -> None:
        self.events: list[str] = []

    def stage(self, name: str, total: float | None = None) -> None:
        self.events.append(f"stage {name} {total}")

    def advance(self, amount: float = 1.0) -> None:
        self.events.append(f"advance {amount}")

    def note(self, message: str) -> None:
        self.events.append(f"note {message}")


def test_result_and_progress_come_back() -> None:
    seen = Seen()
    done = run_child("probe:answer", {"number": 21}, seen)
    assert done.value == {"doubled": 42}
    assert seen.events == ["stage thinking 2", "advance 1.0", "note half way"]
    assert done.peak_rss_bytes > 1 << 20


def test_errors_keep_their_class_and_words() -> None:
    with pytest.raises(ArtifactError, match=r"^model\.onnx is foreign$"):
        run_child("probe:refuse", {}, Silent())


def test_crashes_show_what_the_child_said_last() -> None:
    with pytest.raises(SvtoolError, match=r"was ended by signal 6(.|\n)*last words"):
        run_child("probe:crash", {}, Silent())
    with pytest.raises(SvtoolError, match="KeyError: 'absent'"):
        run_child("probe:fail", {}, Silent())


def test_an_exception_in_the_parent_kills_the_child() -> None:
    seen = Seen()

    def interrupt(elapsed_s: float) -> None:
        if seen.events:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_child("probe:sleep", {}, seen, tick=interrupt)
    assert not alive(int(seen.events[0].split()[1]))


def test_the_child_leaves_with_a_killed_parent() -> None:
    code = (
        "import sys\nfrom svtool.child import run_child\nfrom svtool.progress import Silent\n"
        "class Print(Silent):\n    def note(self, message): print(message, flush=True)\n"
        "run_child('probe:sleep', {}, Print())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert alive(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 5
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(child)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
