"""The Gradio page: what it shows, what it refuses to read, what it leaves on disk.

One module and one page for all of it: Gradio takes seconds to import.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from serving_doubles import FakeRecognizer, wav_bytes

from svtool.errors import AudioError
from svtool.serving.app import create_app
from svtool.serving.page import EXAMPLES, uploaded_file
from svtool.serving.scratch import scratch_folder
from svtool.serving.service import Engine, RequestLimits, Service
from svtool.serving.worker import Worker

pytest.importorskip("gradio", reason="the page is an extra")
# Gradio's queue calls pandas in two ways that pandas has deprecated
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*future.no_silent_downcasting.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The copy keyword is deprecated.*:DeprecationWarning"),
]

FILE = {"_type": "gradio.FileData"}


@pytest.fixture(scope="module")
def page() -> Iterator[SimpleNamespace]:
    """A page on a real server: Gradio's queue lives on one event loop for good."""
    worker = Worker(FakeRecognizer)
    worker.start()
    engine = Engine("tiny/int8.onnx", "int8", "onnxruntime", "CPUExecutionProvider", is_tiny=True)
    service = Service(worker, engine, RequestLimits(file_bytes=400_000))
    before = dict(os.environ)
    with scratch_folder() as folder:
        app = create_app(service, page_folder=folder)
        with running(app) as address, httpx.Client(base_url=address, timeout=20) as client:
            uploads = folder / "uploads"
            yield SimpleNamespace(
                client=client, service=service, folder=folder, uploads=uploads, blocks=blocks_of(app)
            )
    os.environ.clear()
    os.environ.update(before)
    service.close()


@contextmanager
def running(app: FastAPI) -> Iterator[str]:
    """The address of a server on a thread of its own."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="error", ws="none", timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)


def blocks_of(app: FastAPI) -> Any:
    return next(route.app.get_blocks() for route in app.routes if getattr(route, "path", None) == "")


def run_event(page: SimpleNamespace, function: int, data: list[Any]) -> dict[str, Any]:
    """What the page's own JavaScript does: join the queue and wait for the end of the event."""
    session = secrets.token_hex(4)
    join = {"data": data, "fn_index": function, "session_hash": session}
    page.client.post("/gradio_api/queue/join", json=join).raise_for_status()
    with page.client.stream("GET", "/gradio_api/queue/data", params={"session_hash": session}) as stream:
        for line in stream.iter_lines():
            message = json.loads(line.removeprefix("data: ") or "{}")
            if message.get("msg") == "process_completed":
                return dict(message)
    raise AssertionError("the event never ended")


def transcribe(page: SimpleNamespace, path: str, language: str = "auto") -> str:
    done = run_event(page, 0, [{"path": path, "meta": FILE}, language, False])
    assert done["success"], done
    return str(done["output"]["data"][0])


def upload(page: SimpleNamespace, data: bytes, name: str = "a.wav") -> httpx.Response:
    return page.client.post("/gradio_api/upload", files={"files": (name, data)})


def test_the_page_shows_the_engine_and_says_that_tiny_is_a_demonstration(page: SimpleNamespace) -> None:
    answer = page.client.get("/")
    assert answer.status_code == 200
    for text in (
        "tiny/int8.onnx",
        "int8",
        "ONNX Runtime, CPU",
        "one speaker",
        "not a recogniser for your voice",
    ):
        assert text in answer.text


def test_the_page_shadows_no_route(page: SimpleNamespace) -> None:
    for path in ("/health", "/docs", "/openapi.json"):
        assert page.client.get(path).status_code == 200
    answer = page.client.post("/api/recognize", files={"file": ("a.wav", wav_bytes())})
    assert answer.json()["text"] == "heard 1.00 s"
    for method, path, status in (
        *(("GET", "/api/recognize", 405), ("POST", "/health", 405), ("GET", "/api/nothing", 404)),
        *(("POST", "/v1/nothing", 404), ("GET", "/nowhere", 404), ("POST", "/", 405)),
    ):
        answer = page.client.request(method, path)
        assert answer.status_code == status, path
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert ("allow" in answer.headers) == (status == 405)


@pytest.mark.case("U17")
def test_nothing_is_shared_or_reported(page: SimpleNamespace) -> None:
    config = page.client.get("/config").json()
    assert not config.get("share_url")
    assert config["analytics_enabled"] is False
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    assert "fonts.googleapis" not in page.client.get("/").text + page.client.get("/theme.css").text


@pytest.mark.case("U17")
def test_the_browser_is_told_to_fetch_from_here_alone(page: SimpleNamespace) -> None:
    policy = page.client.get("/").headers["content-security-policy"]
    assert policy.startswith("default-src 'self'")
    assert "http" not in policy


def test_an_upload_is_transcribed(page: SimpleNamespace) -> None:
    path = upload(page, wav_bytes(1.25)).json()[0]
    assert Path(path).is_relative_to(page.uploads)
    html = transcribe(page, path, "en")
    for text in ("heard 1.25 s", "English", "Neutral", "1.2 s of audio"):
        assert text in html


def test_an_error_is_shown_in_words_and_escaped(page: SimpleNamespace) -> None:
    html = transcribe(page, upload(page, b"<script>alert(1)</script>" * 9, "x<b>.wav").json()[0])
    assert "not in a known audio format" in html
    assert "<b>.wav" not in html


@pytest.mark.case("U7", "U8")
@pytest.mark.parametrize("kind", ["text", "audio", "link", "dots", "url", "example folder"])
def test_only_uploads_are_read(page: SimpleNamespace, kind: str, tmp_path: Path) -> None:
    elsewhere = tmp_path / "private.wav"
    elsewhere.write_bytes(wav_bytes())
    link = page.uploads / "link.wav"
    link.symlink_to(elsewhere)
    path = {
        "text": "/etc/passwd",
        "audio": str(elsewhere),
        "link": str(link),
        "dots": f"{page.uploads}/../../../../../../../{elsewhere}",
        "url": "https://example.invalid/a.wav",
        "example folder": f"{page.folder}/../lock",
    }[kind]
    completed = page.service.worker.status().completed
    stored = {one: one.stat().st_size for one in page.folder.rglob("*")}
    payload = [{"path": path, "meta": FILE}, "auto", False]
    try:
        answers = [json.dumps(run_event(page, 0, payload))]
        answers.append(page.client.post("/gradio_api/run/transcribe", json={"data": payload}).text)
        started = page.client.post("/gradio_api/call/transcribe", json={"data": payload})
        if started.status_code == 200:
            answers.append(page.client.get(f"/gradio_api/call/transcribe/{started.json()['event_id']}").text)
        for answer in answers:
            assert "heard" not in answer
            assert "root:" not in answer
        assert page.service.worker.status().completed == completed
        assert {one: one.stat().st_size for one in page.folder.rglob("*")} == stored
    finally:
        link.unlink()


@pytest.mark.case("U7")
def test_files_of_the_machine_are_not_served(page: SimpleNamespace) -> None:
    outside = f"{page.uploads}/../../../../../../etc/passwd"
    for path in ("/etc/passwd", outside, str(Path(__file__)), "https://example.invalid"):
        answer = page.client.get(f"/gradio_api/file={path}")
        assert answer.status_code >= 300
        assert "root:" not in answer.text
        if answer.status_code == 403:
            assert set(answer.json()) == {"error"}
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
            assert answer.json()["error"]["code"] == "forbidden"
    assert page.client.get("/gradio_api/file=/etc/passwd").status_code == 403


def test_the_handlers_own_check(tmp_path: Path) -> None:
    uploads = tmp_path / "uploads"
    uploads.mkdir()
    inside, outside = uploads / "a.wav", tmp_path / "b.wav"
    for file in (inside, outside):
        file.write_bytes(b"x")
    (uploads / "link.wav").symlink_to(outside)
    assert uploaded_file(str(inside), uploads) == inside.resolve()
    for path in (
        outside,
        uploads / "link.wav",
        uploads / ".." / "b.wav",
        uploads,
        uploads / "gone.wav",
        "/etc/passwd",
    ):
        with pytest.raises(AudioError, match="not uploaded here"):
            uploaded_file(str(path), uploads)


@pytest.mark.case("U3")
def test_a_large_upload_is_413_on_the_page_too(page: SimpleNamespace) -> None:
    assert upload(page, b"\0" * 450_000).status_code == 413  # by Gradio's own limit
    assert upload(page, b"\0" * 500_000).status_code == 413  # by ours, in front of it


@pytest.mark.case("U13")
def test_every_example_can_be_chosen_heard_and_transcribed(
    page: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    events = page.client.get("/config").json()["dependencies"]
    audio = events[0]["inputs"][:1]
    pickers = [one["id"] for one in events if not one["inputs"] and one["outputs"] == audio]
    assert len(pickers) == len(EXAMPLES)
    for picker in pickers:
        chosen = run_event(page, picker, [])["output"]["data"][0]
        assert page.client.get(chosen["url"]).content[:4] == b"RIFF"
        assert "heard" in transcribe(page, chosen["path"])


@pytest.mark.case("U4")
def test_the_folder_is_private_and_swept_while_the_server_runs(page: SimpleNamespace) -> None:
    from gradio.route_utils import delete_files_created_by_app

    for folder in (page.folder.parent, page.folder, page.uploads):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for number in range(20):
        assert "heard" in transcribe(page, upload(page, wav_bytes(0.1 + number / 100)).json()[0])
    assert len([one for one in page.uploads.rglob("*") if one.is_file()]) >= 20
    # what the server does every minute, with the age at which it deletes set to now
    assert page.blocks.delete_cache == (60, 900)
    delete_files_created_by_app(page.blocks, age=0)
    assert [one for one in page.uploads.rglob("*") if one.is_file()] == []


def test_a_real_engine_offers_no_example_clips(make_service: Callable[..., Service], tmp_path: Path) -> None:
    app = create_app(make_service(is_tiny=False), page_folder=tmp_path)
    config = json.dumps(blocks_of(app).config, default=str)
    assert "Phonetic alphabet" not in config
    assert "one speaker" not in config
    assert not (tmp_path / "examples").exists()


@pytest.mark.case("U4")
def test_a_folder_left_by_a_killed_server_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "svtool-page-killed"
    (left / "files").mkdir(parents=True)
    (left / "lock").touch()
    foreign = tmp_path / "svtool-page-link"
    foreign.symlink_to(tmp_path / "elsewhere")
    with scratch_folder() as one, scratch_folder() as another:
        assert not left.exists()
        assert foreign.is_symlink()
        assert one.is_dir()  # in use: the second server leaves it alone
        assert another.is_dir()
    assert list(tmp_path.iterdir()) == [foreign]
