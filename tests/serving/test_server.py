"""`serve` as a process: address, port in use, warnings, signals; and what needs no server."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from svtool.errors import MissingDependency, SvtoolError, UsageError
from svtool.serving import serve
from svtool.serving.server import cannot_listen

PROGRAM = """
import sys
from svtool.progress import Silent
from svtool.serving import serve, server

class Notes(Silent):
    def note(self, message):
        print(message, file=sys.stderr, flush=True)

from serving_doubles import FakeRecognizer
from svtool.serving.service import Engine
import svtool.recognizer
svtool.recognizer.open_recognizer = lambda *args, **kwargs: FakeRecognizer()
svtool.recognizer.check_artifact = lambda artifact: artifact
server.describe = lambda *args: Engine("fake/model.onnx", "fp32", "onnxruntime", "CPUExecutionProvider")
from pathlib import Path
try:
    serve(Path("fake"), host=sys.argv[1], port=0, ui=False, progress=Notes())
except KeyboardInterrupt:
    sys.exit(130)
"""


@contextmanager
def serving(host: str = "127.0.0.1") -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """A server process, its address, and the lines it printed so far."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, host], stderr=subprocess.PIPE, text=True, env=environment
    )
    lines: list[str] = []
    try:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line.rstrip())
            if line.startswith("serving on "):
                break
        assert (lines or [""])[-1].startswith("serving on "), lines
        yield process, lines[-1].split()[2], lines
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_it_cleanly(sent: signal.Signals, code: int) -> None:
    with serving() as (process, address, _):
        with urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
            assert json.load(answer)["engine"] == "fake/model.onnx"
        began = time.monotonic()
        process.send_signal(sent)
        _, rest = process.communicate(timeout=15)
        assert process.returncode == code
        assert time.monotonic() - began < 5
        assert "Traceback" not in rest


@pytest.mark.case("U9")
def test_it_listens_to_this_machine_alone_and_warns_about_more() -> None:
    with serving() as (_, address, lines):
        assert address.startswith("http://127.0.0.1:")
        assert not [line for line in lines if line.startswith("warning")]
    with serving("0.0.0.0") as (_, _, lines):
        assert [
            line for line in lines if line.startswith("warning: 0.0.0.0 can be reached from other machines")
        ]


def test_the_default_host_is_loopback() -> None:
    import inspect

    assert inspect.signature(serve).parameters["host"].default == "127.0.0.1"
    assert inspect.signature(serve).parameters["port"].default == 7860


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SvtoolError, match=f"port {port} on 127.0.0.1 is in use: .*--port"):
            serve(tmp_path, port=port, ui=False)


def test_a_host_of_another_machine_is_refused(tmp_path: Path) -> None:
    for host in ("192.0.2.1", "2001:db8::1"):
        with pytest.raises(UsageError, match=f"--host {host} is not an address of this machine: use 127"):
            serve(tmp_path, host=host, port=0, ui=False)
    for host in ("no such host", "x" * 70, "a..b", "a\0b"):
        with pytest.raises(UsageError, match="names no address"):
            serve(tmp_path, host=host, port=0, ui=False)
    with pytest.raises(UsageError, match="port 70000"):
        serve(tmp_path, port=70_000, ui=False)


def test_a_port_that_needs_rights_has_its_own_sentence() -> None:
    # root may take any port, so the system's answer is given here as it is
    refused = cannot_listen("127.0.0.1", 80, PermissionError(errno.EACCES, "Permission denied"))
    assert "port 80 on 127.0.0.1 needs rights" in str(refused)
    assert "1024" in str(refused)


def test_what_runs_when_it_is_told_to_stop_ends_or_is_503() -> None:
    """One upload that is half sent: cut off with an answer, at once, and with no traceback."""
    with serving() as (process, address, _):
        port = int(address.rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(
                b"POST /api/recognize HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n"
                b"content-type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
            )
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
            answer = b"".join(iter(lambda: client.recv(65_536), b""))
        _, rest = process.communicate(timeout=15)
    assert answer.startswith(b"HTTP/1.1 503"), answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "server_stopping"
    assert process.returncode == 0
    assert "Traceback" not in rest


def test_faults_of_clients_leave_no_trace_on_stderr() -> None:
    with serving() as (process, address, _):
        port = int(address.rsplit(":", 1)[1])
        head = b"POST /api/recognize HTTP/1.1\r\nhost: x\r\ncontent-type: multipart/form-data; boundary=x\r\n"
        for rest in (
            b"content-length: 5000\r\n\r\n--x\r\n",  # leaves while it sends
            b"content-length: 5\r\n\r\n--y\r\n",
            b"content-length: 99999999999\r\n\r\n",
            b"transfer-encoding: chunked\r\n\r\n5\r\n--x\r\n\r\n",
        ):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
                client.sendall(head + rest)
                time.sleep(0.1)
        with urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
            state = json.load(answer)
        process.send_signal(signal.SIGTERM)
        _, printed = process.communicate(timeout=15)
    assert (state["accepted"], state["failed"], state["in_flight"]) == (0, 0, 0)
    assert state["refused"] == 2
    assert state["abandoned"] == 2
    assert printed.split() == ["stopped"]


@pytest.mark.case("E10")
def test_a_missing_artifact_is_refused_and_nothing_is_exported(tmp_path: Path) -> None:
    with pytest.raises(SvtoolError, match="does not exist: make it with  svtool export"):
        serve(tmp_path / "none.onnx", port=0, ui=False)
    assert list(tmp_path.iterdir()) == []


def test_without_the_libraries_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name in ("fastapi", "gradio") else found(name, *rest),
    )
    with pytest.raises(MissingDependency, match=r"fastapi and gradio, .*\.\[serve\]"):
        serve(tmp_path, ui=True)


def test_without_the_page_gradio_is_not_imported() -> None:
    code = (
        "import sys, io\n"
        "from serving_doubles import FakeRecognizer\n"
        "from svtool.serving.app import create_app\n"
        "from svtool.serving.service import Engine, Service\n"
        "from svtool.serving.worker import Worker\n"
        "assert 'fastapi' not in sys.modules\n"
        "create_app(Service(Worker(FakeRecognizer), Engine('a', 'b', 'c', 'd')), ui=False)\n"
        "sys.exit('gradio' in sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
