"""The HTTP API over a double of the recognizer: answers, errors, limits, and that the event loop stays free."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving_doubles import FakeRecognizer, wav_bytes

from svtool.serving.app import create_app
from svtool.serving.guard import Guard
from svtool.serving.service import RequestLimits, Service
from svtool.serving.worker import Busy, QueueLimits

Client = httpx.AsyncClient
URL = "/api/recognize"


def call(service: Service, steps: Callable[[Client], Any]) -> Any:
    """Run an async conversation with the application."""

    async def conversation() -> Any:
        transport = httpx.ASGITransport(create_app(service, ui=False), raise_app_exceptions=False)
        async with Client(transport=transport, base_url="http://test") as client:
            return await steps(client)

    return asyncio.run(conversation())


def post(service: Service, data: bytes, name: str = "a.wav", **fields: str) -> httpx.Response:
    return call(service, lambda client: client.post(URL, files={"file": (name, data)}, data=fields))


@pytest.fixture
def service(make_service: Callable[..., Service]) -> Service:
    return make_service()


def error_of(response: httpx.Response) -> dict[str, Any]:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def test_recognize_answers_text_and_marks(service: Service, fake: FakeRecognizer) -> None:
    answer = post(service, wav_bytes(1.5), language="EN", itn="true")
    assert answer.status_code == 200
    body = answer.json()
    assert body["rtf"] > 0
    assert body | {"rtf": 0} == {
        "text": "heard 1.50 s",
        "language": "en",
        "emotion": "NEUTRAL",
        "events": ["Speech"],
        "duration": 1.5,
        "rtf": 0,
        "no_speech": False,
        "reason": None,
        "segments": [],
        "warnings": [],
    }
    assert (fake.options[0].language, fake.options[0].itn) == ("en", True)


def test_defaults_are_auto_and_no_itn(service: Service, fake: FakeRecognizer) -> None:
    assert post(service, wav_bytes()).status_code == 200
    assert (fake.options[0].language, fake.options[0].itn) == ("auto", False)


@pytest.mark.case("A4")
def test_every_rate_is_resampled(service: Service) -> None:
    assert post(service, wav_bytes(1.0, rate=8_000)).json()["text"] == "heard 1.00 s"


@pytest.mark.case("D6")
def test_a_misspelt_language_is_understood_with_a_warning(service: Service, fake: FakeRecognizer) -> None:
    body = post(service, wav_bytes(), language="zn").json()
    assert fake.options[0].language == "zh"
    assert "read as 'zh'" in body["warnings"][0]


@pytest.mark.parametrize(
    "data", [b"", b"hello there, this is text\n" * 99, bytes(range(256)) * 40, b"\x89PNG\r\n"]
)
@pytest.mark.case("A7", "A9")
def test_what_is_not_audio_is_415(service: Service, data: bytes) -> None:
    answer = post(service, data, "speech.wav")
    assert answer.status_code == 415
    assert error_of(answer)["code"] == "not_audio"


@pytest.mark.parametrize("fields", [{"language": "xx"}, {"itn": "maybe"}])
@pytest.mark.case("D6")
def test_a_bad_parameter_is_422_and_named(service: Service, fields: dict[str, str]) -> None:
    answer = post(service, wav_bytes(), **fields)
    assert answer.status_code == 422
    assert error_of(answer)["param"] in fields
    assert error_of(answer)["type"] == "invalid_request_error"


def test_broken_audio_is_422(service: Service) -> None:
    answer = post(service, wav_bytes()[:20] + b"\0" * 40)
    assert answer.status_code == 422
    assert error_of(answer)["param"] == "file"


@pytest.mark.case("U7")
@pytest.mark.parametrize(
    "request_of",
    [
        lambda client: client.post(URL, json={"file": "/etc/passwd", "path": "/etc/passwd"}),
        lambda client: client.post(URL, data={"file": "/etc/passwd"}),
        lambda client: client.post(URL, data={"file": "http://127.0.0.1/a.wav"}),
        lambda client: client.post(URL),
    ],
)
def test_paths_and_urls_are_no_files(service: Service, request_of: Callable[[Client], Any]) -> None:
    answer = call(service, request_of)
    assert answer.status_code == 422
    assert error_of(answer)["param"] == "file"
    assert "root:" not in answer.text


@pytest.mark.case("U7", "U8")
@pytest.mark.parametrize(
    "name", ["../../x.wav", "/etc/passwd", "-i.wav", "..\\..\\x", "a\nb\x00.wav", "x" * 1000, "é 🎤.mp3"]
)
def test_the_clients_file_name_is_never_a_path(service: Service, name: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.parent.rglob("*"))
    assert post(service, wav_bytes(), name).json()["text"] == "heard 1.00 s"
    refused = post(service, b"no audio", name)
    assert refused.status_code == 415
    assert ".." not in error_of(refused)["message"]
    assert "/etc" not in error_of(refused)["message"]
    assert len(error_of(refused)["message"]) < 250
    assert sorted(tmp_path.parent.rglob("*")) == before


@pytest.mark.case("U8")
@pytest.mark.parametrize(
    "playlist",
    [
        b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/a.wav\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 9 RTP/AVP 0\n",
    ],
)
def test_playlists_open_nothing(service: Service, playlist: bytes) -> None:
    assert post(service, playlist, "a.wav").status_code == 415


@pytest.mark.case("B7")
def test_a_non_finite_engine_is_500_with_its_reason(service: Service) -> None:
    answer = post(service, wav_bytes(peak=1.8))
    assert answer.status_code == 500
    assert error_of(answer) == {
        "message": "the engine returned NaN or infinite logits for item 0",
        "type": "server_error",
        "param": None,
        "code": "engine_failure",
    }


@pytest.mark.case("U1")
def test_good_corrupt_failing_good_in_one_window(service: Service, fake: FakeRecognizer) -> None:
    async def together(client: Client) -> list[int]:
        sent = [wav_bytes(), wav_bytes()[:60], wav_bytes(peak=2.5), wav_bytes()]
        answers = await asyncio.gather(*(client.post(URL, files={"file": ("a.wav", one)}) for one in sent))
        after = await client.post(URL, files={"file": ("a.wav", wav_bytes())})
        return [answer.status_code for answer in (*answers, after)]

    codes = call(service, together)
    assert codes[0] == codes[3] == codes[4] == 200
    assert codes[2] == 500


@pytest.mark.case("U2")
def test_health_answers_while_inference_runs(service: Service, fake: FakeRecognizer) -> None:
    async def poll(client: Client) -> float:
        fake.gate.clear()
        job = asyncio.create_task(client.post(URL, files={"file": ("a.wav", wav_bytes())}))
        slowest = 0.0
        while not fake.batches:
            await asyncio.sleep(0.01)
        for _ in range(20):
            began = time.perf_counter()
            state = (await client.get("/health")).json()
            slowest = max(slowest, time.perf_counter() - began)
            assert state["worker"]["busy_s"] is not None
            await asyncio.sleep(0.02)
        fake.gate.set()
        assert (await job).status_code == 200
        return slowest

    assert call(service, poll) < 0.2


def test_health_says_what_is_served(service: Service) -> None:
    post(service, wav_bytes())
    state = call(service, lambda client: client.get("/health")).json()
    assert state["status"] == "ok"
    assert (state["engine"], state["precision"]) == ("fake/model.onnx", "fp32")
    assert state["provider"] == "CPUExecutionProvider"
    assert state["queue"]["requests"] == 0
    assert 0 <= state["last_success_age_s"] < 60
    assert state["completed"] == 1


@pytest.mark.case("U12")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_worker_is_503_and_unhealthy(service: Service) -> None:
    assert post(service, wav_bytes(peak=4.0)).status_code == 503
    assert post(service, wav_bytes()).status_code == 503
    health = call(service, lambda client: client.get("/health"))
    assert (health.status_code, health.json()["status"]) == (503, "unhealthy")


@pytest.mark.case("U11")
def test_a_full_server_is_429_before_the_body_is_read(
    make_service: Callable[..., Service], fake: FakeRecognizer
) -> None:
    service = make_service(limits=RequestLimits(in_flight=3), queue=QueueLimits(waiting_n=3))

    async def flood(client: Client) -> httpx.Response:
        fake.gate.clear()
        jobs = [
            asyncio.create_task(client.post(URL, files={"file": ("a.wav", wav_bytes())})) for _ in range(3)
        ]
        while service.health()["in_flight"] < 3:
            await asyncio.sleep(0.01)
        refused = await client.post(URL, files={"file": ("a.wav", wav_bytes())})
        fake.gate.set()
        assert [(await job).status_code for job in jobs] == [200] * 3
        return refused

    refused = call(service, flood)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert error_of(refused)["type"] == "rate_limit_error"
    because = service.health()["refused_because"]
    assert because == {"client_mistake": 0, "server_busy": service.health()["refused"]}
    assert because["server_busy"] >= 1
    assert service.health()["in_flight"] == 0


@pytest.mark.case("U11")
def test_fifty_at_once_are_served_or_told_to_come_back(
    make_service: Callable[..., Service], fake: FakeRecognizer
) -> None:
    service = make_service(limits=RequestLimits(in_flight=8), queue=QueueLimits(waiting_n=8))

    async def flood(client: Client) -> list[httpx.Response]:
        fake.gate.clear()
        jobs = [
            asyncio.create_task(client.post(URL, files={"file": ("a.wav", wav_bytes())})) for _ in range(50)
        ]
        await asyncio.sleep(0.3)
        fake.gate.set()
        answers = list(await asyncio.gather(*jobs))
        return [*answers, await client.post(URL, files={"file": ("a.wav", wav_bytes())})]

    *answers, after = call(service, flood)
    codes = [answer.status_code for answer in answers]
    assert set(codes) == {200, 429}
    assert codes.count(200) >= 8
    assert all("retry-after" in answer.headers for answer in answers if answer.status_code == 429)
    assert after.status_code == 200


@pytest.mark.case("U3", "U11")
@pytest.mark.parametrize(("length", "status"), [(b"999999", 413), (b"10", 429)])
def test_a_refusal_is_sent_before_the_body_is_read(length: bytes, status: int) -> None:
    happened: list[str] = []

    def no_room() -> None:
        if status == 429:
            raise Busy(7)

    async def application(*_: Any) -> None:
        happened.append("application")

    async def receive() -> dict[str, Any]:
        happened.append("read")
        return {"type": "http.request", "body": b"x" * 1000, "more_body": len(happened) < 5}

    async def send(message: Any) -> None:
        happened.append(str(message.get("status", "sent")))

    scope = {"type": "http", "method": "POST", "path": URL, "headers": [(b"content-length", length)]}
    asyncio.run(Guard(application, 5000, no_room)(scope, receive, send))
    # the answer first; then the body is thrown away, so that the client lives to see the answer
    assert happened == [str(status), "sent", "read", "read", "read", "sent"]


@pytest.mark.case("U3")
def test_a_declared_large_body_is_413_unread(make_service: Callable[..., Service]) -> None:
    service = make_service(limits=RequestLimits(file_bytes=100_000))
    answer = post(service, b"\0" * 200_000)
    assert answer.status_code == 413
    assert error_of(answer)["code"] == "file_too_large"
    assert "0.1 MB" in error_of(answer)["message"]
    assert post(service, b"\0" * 120_000).status_code == 413  # inside the allowance for multipart framing


@pytest.mark.case("U3")
@pytest.mark.parametrize("path", [URL, "/health", "/nowhere"])
def test_a_stream_without_length_is_counted(make_service: Callable[..., Service], path: str) -> None:
    service = make_service(limits=RequestLimits(file_bytes=100_000))
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        yield b'--x\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        for _ in range(10_000):
            sent += 10_000
            yield b"\0" * 10_000

    headers = {"content-type": "multipart/form-data; boundary=x"}
    answer = call(service, lambda client: client.post(path, content=endless(), headers=headers))
    # routes that take no body never read one
    assert answer.status_code == (413 if path == URL else answer.status_code)
    assert sent < 1_000_000


@pytest.mark.case("U3")
def test_long_silence_in_few_bytes_is_stopped_while_decoding(make_service: Callable[..., Service]) -> None:
    import av
    import numpy as np

    path = Path(os.environ["SVTOOL_CACHE"]) / "long.flac"
    with av.open(str(path), "w", format="flac") as out:
        stream = out.add_stream("flac", rate=16_000, layout="mono")
        for _ in range(120):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 16_000), np.int16), format="s16", layout="mono")
            frame.sample_rate = 16_000
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    answer = post(make_service(limits=RequestLimits(duration_s=60.0)), path.read_bytes(), "long.flac")
    assert answer.status_code == 413
    assert error_of(answer)["code"] == "too_long"


@pytest.mark.case("U1")
def test_a_client_that_leaves_is_taken_out_of_the_queue(service: Service, fake: FakeRecognizer) -> None:
    async def leave(client: Client) -> None:
        fake.gate.clear()
        running = asyncio.create_task(client.post(URL, files={"file": ("a.wav", wav_bytes())}))
        while not fake.batches:
            await asyncio.sleep(0.01)
        await _post_and_disconnect(create_app(service, ui=False), wav_bytes())
        assert service.health()["queue"]["requests"] == 0
        fake.gate.set()
        assert (await running).status_code == 200

    call(service, leave)
    assert fake.batches == [1]


async def _post_and_disconnect(app: Any, data: bytes) -> None:
    request = httpx.Request("POST", f"http://test{URL}", files={"file": ("a.wav", data)})
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            await asyncio.sleep(0.2)  # long enough to be decoded and queued
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": request.read(), "more_body": False}

    async def send(_: Any) -> None: ...

    headers = [(name.lower(), value) for name, value in request.headers.raw]
    scope = {"type": "http", "method": "POST", "path": URL, "headers": headers, "query_string": b""}
    await app(
        scope | {"root_path": "", "scheme": "http", "server": ("test", 80), "http_version": "1.1"},
        receive,
        send,
    )


@pytest.mark.case("U4")
def test_the_api_leaves_no_file_behind(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    large = wav_bytes(70.0)  # over a megabyte, so that the upload is spooled to disk

    async def many(client: Client) -> None:
        for data in [large, b"not audio" * 200_000] * 5:
            await client.post(URL, files={"file": ("a.wav", data)})

    call(service, many)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/nowhere", 404, None),
        ("POST", "/api/nothing", 404, None),
        ("GET", "/api", 404, None),
        ("POST", URL + "/", 404, None),
        *((method, URL, 405, "POST") for method in ("GET", "PUT", "DELETE", "OPTIONS", "PATCH", "NONSENSE")),
        ("POST", "/health", 405, "GET, HEAD"),
        ("POST", "/docs", 405, "GET, HEAD"),
        ("DELETE", "/openapi.json", 405, "GET, HEAD"),
    ],
)
def test_http_errors_have_our_body(
    service: Service, method: str, path: str, status: int, allow: str | None
) -> None:
    answer = call(service, lambda client: client.request(method, path))
    assert answer.status_code == status
    assert error_of(answer)["code"] == {404: "not_found", 405: "method_not_allowed"}[status]
    assert answer.headers.get("allow") == allow
    assert (allow or "/docs") in error_of(answer)["message"]


def test_head_is_answered_without_a_body(service: Service) -> None:
    assert call(service, lambda client: client.head("/health")).status_code == 200
    refused = call(service, lambda client: client.head(URL))
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


WAV = ("a.wav", wav_bytes())


@pytest.mark.parametrize(
    ("files", "data", "param", "words"),
    [
        ([], {"file": "hello"}, "file", "no upload form"),  # without a file httpx sends no multipart
        ([("file", (None, "hello"))], {}, "file", "holds text instead of a file"),
        ([("language", (None, "en"))], {}, "file", "'file' is missing"),
        ([("file", WAV), ("file", WAV)], {}, "file", "came 2 times: send one recording"),
        ([("file", WAV), ("file", (None, "x"))], {}, "file", "came 2 times"),
        ([("file", WAV)], {"language": ["en", "zh"]}, "language", "came 2 times"),
        ([("file", WAV)], {"language": "xx"}, "language", "is not known: use one of auto"),
        ([("file", WAV)], {"language": "x" * 3000}, "language", "3000 characters"),
        ([("file", WAV), ("language", WAV)], {}, "language", "holds a file"),
        ([("file", WAV)], {"itn": "maybe"}, "itn", "use true or false"),
        ([("file", WAV)], {"langauge": "en"}, "langauge", "did you mean 'language'"),
        ([("file", WAV), ("model", WAV)], {}, "model", "unknown field 'model'"),
        ([("file", WAV)], {"a\nb": "1"}, None, "unknown field"),
        (
            [("file", WAV)],
            {"nonsense": "1"},
            "nonsense",
            "field 'nonsense' (known here: file, language, itn)",
        ),
    ],
)
@pytest.mark.case("D6")
def test_a_wrong_form_is_told_in_our_words_and_counted(
    service: Service, files: list[Any], data: dict[str, Any], param: str | None, words: str
) -> None:
    answer = call(service, lambda client: client.post(URL, files=files, data=data))
    assert answer.status_code == 422
    error = error_of(answer)
    assert words in error["message"]
    assert param in (None, error["param"])
    for foreign in ("Value error", "UploadFile", "Field required", "Input should", "\n"):
        assert foreign not in error["message"]
    assert len(error["message"]) < 300
    state = service.health()
    assert (state["refused"], state["accepted"], state["failed"], state["completed"]) == (1, 0, 0, 0)


def test_a_parameter_in_the_address_is_not_passed_over(service: Service) -> None:
    answer = call(service, lambda client: client.post(f"{URL}?language=en", files={"file": WAV}))
    assert answer.status_code == 422
    assert "form field" in error_of(answer)["message"]


PART = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n' + wav_bytes()


@pytest.mark.parametrize(
    "body",
    [
        PART,
        PART + b'\r\n--x\r\ncontent-disposition: form-data; name="language"\r\n\r\nzh',
        PART.replace(b"--x", b"--y") + b"\r\n--y--\r\n",
        PART.replace(b"name", b"nome") + b"\r\n--x--\r\n",
        b"--x\r\n\r\n\r\n--x--\r\n",
        b'--x\r\ncontent-disposition: form-data; name="a"\r\n\r\n' + b"1" * 5000 + b"\r\n--x--\r\n",
        b'--x\r\ncontent-disposition: form-data; name="a"\r\n\r\n1\r\n' * 99 + b"--x--\r\n",
        b"\0" * 100,
        b"",
    ],
)
def test_a_broken_form_is_400(service: Service, body: bytes) -> None:
    headers = {"content-type": "multipart/form-data; boundary=x"}
    answer = call(service, lambda client: client.post(URL, content=body, headers=headers))
    assert answer.status_code == 400
    assert "curl -F file=@" in error_of(answer)["message"]
    assert service.health()["refused"] == 1


@pytest.mark.parametrize("kind", ["multipart/form-data", "multipart/form-data; boundary=", "text/plain", "é"])
def test_an_odd_content_type_is_refused(service: Service, kind: str) -> None:
    headers = {"content-type": kind.encode()}
    answer = call(service, lambda client: client.post(URL, content=b"x", headers=headers))
    assert answer.status_code in (400, 422)
    assert "multipart/form-data" in error_of(answer)["message"]


def test_health_tells_apart_what_became_of_requests(service: Service) -> None:
    for data in (wav_bytes(), b"no audio", b"", wav_bytes(peak=1.8), wav_bytes(peak=2.5)):
        post(service, data)
    post(service, wav_bytes(), language="xx")
    state = service.health()
    counts = {name: state[name] for name in ("accepted", "completed", "failed", "refused", "abandoned")}
    assert counts == {"accepted": 3, "completed": 1, "failed": 2, "refused": 3, "abandoned": 0}
    # clients' mistakes must not read like overload
    assert state["refused_because"] == {"client_mistake": 3, "server_busy": 0}


def test_health_is_described_key_by_key(service: Service) -> None:
    def described(schema: dict[str, Any], value: Any) -> None:
        assert set(schema.get("properties", {})) == (set(value) if isinstance(value, dict) else set())
        for name, inner in schema.get("properties", {}).items():
            described(inner, value[name])

    schema = call(service, lambda client: client.get("/openapi.json")).json()
    answers = schema["paths"]["/health"]["get"]["responses"]
    described(answers["200"]["content"]["application/json"]["schema"], service.health())
    docs = call(service, lambda client: client.get("/docs")).text
    assert "refused_because.server_busy" in docs


@pytest.mark.case("U1")
def test_a_hundred_at_once_with_a_bad_one_among_them(make_service: Callable[..., Service]) -> None:
    service = make_service(limits=RequestLimits(in_flight=200), queue=QueueLimits(waiting_n=200))

    async def together(client: Client) -> list[int]:
        sent = [b"bad" if number == 50 else wav_bytes(0.1) for number in range(100)]
        answers = await asyncio.gather(*(client.post(URL, files={"file": ("a.wav", one)}) for one in sent))
        return [answer.status_code for answer in answers]

    assert call(service, together) == [200] * 50 + [415] + [200] * 49


def test_an_unexpected_error_is_500_without_details(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(service, "_decode", broken)
    answer = post(service, wav_bytes())
    assert answer.status_code == 500
    assert error_of(answer)["code"] == "internal_error"
    assert "secret" not in answer.text


def test_docs_and_schema(service: Service) -> None:
    docs = call(service, lambda client: client.get("/docs"))
    assert docs.status_code == 200
    for text in ("/api/recognize", "language", "413", "segments[].start", "error.message", "curl -F file="):
        assert text in docs.text
    # nothing to fetch, and the browser is told to fetch nothing
    assert "<script" not in docs.text
    assert "src=" not in docs.text
    assert "https://" not in docs.text
    assert docs.headers["content-security-policy"].startswith("default-src 'none'")
    schema = call(service, lambda client: client.get("/openapi.json")).json()
    assert sorted(schema["paths"]) == ["/api/recognize", "/health"]
    answers = schema["paths"][URL]["post"]["responses"]
    assert {"200", "413", "415", "422", "429", "500", "503"} <= set(answers)
    fields = schema["components"]["schemas"]["RecognitionBody"]["properties"]
    assert {"text", "language", "emotion", "events", "duration", "rtf"} <= set(fields)
    assert json.dumps(schema)


def test_without_the_page_the_root_leads_to_the_docs(service: Service) -> None:
    answer = call(service, lambda client: client.get("/"))
    assert (answer.status_code, answer.headers["location"]) == (307, "/docs")
