"""From uploaded bytes to a recognition: parameters checked, audio decoded, the worker asked.

Shared by the HTTP API and the page. Decoding runs on threads of its own and inference on the worker's, so the
event loop is never held up. Knows nothing of HTTP or Gradio.
"""

from __future__ import annotations

import asyncio
import os
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from svtool.assets import parse_language
from svtool.frontend import SAMPLE_RATE
from svtool.recognizer import Options, Transcript
from svtool.serving.worker import Busy, Worker

if TYPE_CHECKING:
    from svtool.audio import Audio
    from svtool.recognizer import Recognizer

_NAME_LENGTH = 120


@dataclass(frozen=True)
class Engine:
    """What is being served, for people to see."""

    name: str
    precision: str
    runtime: str
    provider: str
    is_tiny: bool = False  # the embedded demonstration model, which must never pass for a real recogniser


@dataclass(frozen=True)
class RequestLimits:
    file_bytes: int = 25_000_000
    duration_s: float = 600.0  # decoded audio of one request; 38 MB in memory
    in_flight: int = 80  # requests being decoded, waiting or running


@dataclass(frozen=True)
class Recognition:
    """A transcript and what it took to get it."""

    transcript: Transcript
    took_s: float  # decoding, waiting and inference
    warnings: tuple[str, ...]

    @property
    def rtf(self) -> float | None:
        """Seconds taken, waiting included, per second of audio; None without audio."""
        duration_s = self.transcript.duration_s
        return self.took_s / duration_s if duration_s > 0 else None


class Service:
    """Serves one engine. `close` ends its threads."""

    def __init__(self, worker: Worker, engine: Engine, limits: RequestLimits | None = None) -> None:
        self.worker = worker
        self.engine = engine
        self.limits = limits or RequestLimits()
        self._decoders = ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="svtool-decode")
        self._in_flight = 0

    def check_room(self) -> None:
        """Raises Busy before anything is read of a request that could not be served."""
        if self._in_flight >= self.limits.in_flight:
            raise Busy(self.worker.retry_after_s())

    async def recognize(
        self, source: bytes | Path, *, name: str = "audio", language: str = "auto", itn: bool = False
    ) -> Recognition:
        """Transcribe the bytes of an audio file. `name` is for messages only.

        Raises UsageError for a bad parameter, AudioError for bad audio, Busy, Stopped, or what the engine raised.
        Cancelling takes the request out of the queue.
        """
        options, notes = _options(language, itn)
        self.check_room()
        self._in_flight += 1
        try:
            began = time.monotonic()
            audio = await asyncio.get_running_loop().run_in_executor(
                self._decoders, self._decode, source, name
            )
            transcript = await asyncio.wrap_future(self.worker.submit(audio.samples, options))
            return Recognition(transcript, time.monotonic() - began, (*notes, *audio.warnings))
        finally:
            self._in_flight -= 1

    def health(self) -> dict[str, Any]:
        status = self.worker.status()
        return {
            "status": "ok" if status.alive else "unhealthy",
            "engine": self.engine.name,
            "precision": self.engine.precision,
            "runtime": self.engine.runtime,
            "provider": self.engine.provider,
            "demonstration_model": self.engine.is_tiny,
            "queue": {
                "requests": status.waiting,
                "audio_seconds": round(status.waiting_s, 3),
                "limit": self.worker.limits.waiting_n,
            },
            "in_flight": self._in_flight,
            "worker": {"alive": status.alive, "busy_s": _rounded(status.busy_s)},
            "last_success_age_s": _rounded(status.last_success_age_s),
            "completed": status.completed,
            "failed": status.failed,
        }

    def close(self) -> None:
        self._decoders.shutdown(wait=False, cancel_futures=True)
        self.worker.close()

    def _decode(self, source: bytes | Path, name: str) -> Audio:
        from svtool.audio import decode_audio

        return decode_audio(source, name=display_name(name), max_duration_s=self.limits.duration_s)


def display_name(name: str) -> str:
    """The last part of a client's file name, fit for a message. Never opened."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    return last[-_NAME_LENGTH:] or "audio"


def describe(recognizer: Recognizer, artifact: Path) -> Engine:
    """What a recognizer opened from `artifact` is called."""
    from svtool import tiny
    from svtool.artifacts import is_tiny
    from svtool.manifest import manifest_path, read_manifest

    path = recognizer.artifact or artifact
    manifest = read_manifest(path) if manifest_path(path).is_file() else {}
    return Engine(
        name=f"{path.resolve().parent.name}/{path.name}",
        precision=str(manifest.get("precision", "fp32")),
        runtime=recognizer.backend.runtime,
        provider=recognizer.backend.provider,
        is_tiny=is_tiny(path) or path.resolve() == tiny.MODEL_DIR.resolve(),
    )


def warm(recognizer: Recognizer) -> None:
    """Run once, so that the first request does not pay for what the runtime does on its first call."""
    noise = np.random.default_rng(0).standard_normal(2 * SAMPLE_RATE).astype(np.float32) * np.float32(0.1)
    result = recognizer.transcribe([noise], Options())[0]
    if isinstance(result, Exception):
        raise result


def _options(language: str, itn: bool) -> tuple[Options, list[str]]:
    # a misspelt language that is understood is told to the client, not to the server's terminal
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parsed = parse_language(language)
    return Options(language=parsed, itn=itn), [str(one.message) for one in caught]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
