"""From an upload to text through the real recognizer, vocabulary and decoding, over a backend that says one thing."""

from __future__ import annotations

import asyncio
import io
import wave
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from serving_doubles import wav_bytes

from svtool.assets import Assets
from svtool.backends import Batch, Limits, Output
from svtool.recognizer import Recognizer
from svtool.serving.app import create_app
from svtool.serving.service import Engine, Service, warm
from svtool.serving.worker import Worker


class OneSentence:
    """A backend that hears `<|en|><|HAPPY|><|Speech|><|woitn|>` and then the tokens given, in every item."""

    runtime, provider, limits = "double", "double", Limits()

    def __init__(self, assets: Assets, said: list[int]) -> None:
        self.tag_ids = assets.tokens.tag_ids
        tags = ["en", next(iter(assets.tokens.emotion_ids)), "Speech", "woitn"]
        self.path = [*(assets.tokens.tag_id(tag) for tag in tags), *said]
        self.broken = False
        self.batches = 0

    def infer(self, batch: Batch) -> Output:
        self.batches += 1
        size, frames = batch.feats.shape[0], batch.feats.shape[1] + 4
        token_ids = np.zeros((size, frames), dtype=np.int32)
        token_ids[:, : len(self.path)] = self.path[:frames]
        tag_logits = np.zeros((size, 4, len(self.tag_ids)), dtype=np.float32)
        for slot, tag in enumerate(self.path[:4]):
            tag_logits[:, slot, self.tag_ids.index(tag)] = 9.0
        logprobs = np.full((size, frames), np.nan if self.broken else -0.1, dtype=np.float32)
        return Output(token_ids, logprobs, tag_logits, batch.feat_lens + np.int32(4))

    def close(self) -> None: ...


@pytest.fixture
def backend(tiny_assets: Assets) -> OneSentence:
    pieces = tiny_assets.tokens.pieces
    words = [index for index, piece in enumerate(pieces) if piece.startswith("▁") and len(piece) > 3][:2]
    return OneSentence(tiny_assets, [words[0], 0, words[1], tiny_assets.tokens.tag_id("Speech")])


@pytest.fixture
def service(backend: OneSentence, tiny_assets: Assets) -> Iterator[Service]:
    worker = Worker(lambda: Recognizer(backend, tiny_assets))
    worker.start()
    service = Service(worker, Engine("double", "fp32", "double", "double"))
    yield service
    service.close()


def post(service: Service, data: bytes) -> httpx.Response:
    async def conversation() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(service, ui=False))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post("/api/recognize", files={"file": ("a.wav", data)})

    return asyncio.run(conversation())


def noise(level_dbfs: float, seconds: float = 1.0, hum_hz: float = 0.0) -> bytes:
    time = np.arange(int(16_000 * seconds)) / 16_000
    shape = (
        np.sin(2 * np.pi * hum_hz * time) if hum_hz else np.random.default_rng(3).standard_normal(len(time))
    )
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(np.rint(shape * 10 ** (level_dbfs / 20) * 32768).astype("<i2").tobytes())
    return out.getvalue()


@pytest.mark.case("D2")
def test_text_has_no_tags_and_marks_are_apart(
    service: Service, tiny_assets: Assets, backend: OneSentence
) -> None:
    body = post(service, wav_bytes(1.0)).json()
    assert body["text"] == tiny_assets.tokens.text(backend.path[4:])
    assert "<|" not in body["text"]
    assert body["language"] == "en"
    assert body["events"] == ["Speech"]
    assert [one["text"] for one in body["segments"]] == [body["text"]]
    assert all(0 <= one["start"] < one["end"] <= body["duration"] for one in body["segments"])


@pytest.mark.case("U18", "D12")
@pytest.mark.parametrize(
    "quiet",
    [noise(-200), noise(-62), noise(-30, hum_hz=50.0), noise(-20, seconds=0.02), noise(-20, seconds=0.0)],
)
def test_what_holds_no_speech_never_reaches_the_model(
    service: Service, backend: OneSentence, quiet: bytes
) -> None:
    answer = post(service, quiet)
    assert answer.status_code == 200
    assert (answer.json()["text"], answer.json()["no_speech"]) == ("", True)
    assert answer.json()["segments"] == []
    assert any(word in answer.json()["reason"] for word in ("too short", "too quiet"))
    assert backend.batches == 0


@pytest.mark.case("B7")
def test_nan_from_the_engine_is_an_error_and_never_an_empty_text(
    service: Service, backend: OneSentence
) -> None:
    backend.broken = True
    answer = post(service, wav_bytes())
    assert answer.status_code == 500
    assert "NaN" in answer.json()["error"]["message"]
    backend.broken = False
    assert post(service, wav_bytes()).status_code == 200


def test_an_engine_that_fails_its_first_run_does_not_start(tiny_assets: Assets, backend: OneSentence) -> None:
    def opener() -> Any:
        recognizer = Recognizer(backend, tiny_assets)
        warm(recognizer)
        return recognizer

    backend.broken = True
    with pytest.raises(Exception, match="NaN"):
        Worker(opener).start()
