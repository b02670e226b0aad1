"""From uploaded bytes to a recognition: parameters checked, audio decoded, the worker asked.

Shared by the HTTP API and the page. Decoding runs on threads of its own and inference on the worker's, so the
event loop is never held up. Knows nothing of HTTP or Gradio.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from svtool.assets import parse_language
from svtool.errors import AudioError, UsageError
from svtool.frontend import SAMPLE_RATE
from svtool.recognizer import SILENCE, TOO_SHORT, Options, Transcript
from svtool.serving.worker import Busy, Stopped, Worker

if TYPE_CHECKING:
    from svtool.audio import Audio
    from svtool.recognizer import Recognizer

_NAME_LENGTH = 120
_DRAIN_S = 5.0
_NO_SPEECH = {
    TOO_SHORT: "The recording is too short: there is nothing to hear in less than 25 milliseconds.",
    SILENCE: "The recording is silent, or too quiet to be speech. The model was not run.",
}
_NOTHING_HEARD = "The model heard no speech in this recording."


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


@dataclass
class Counts:
    """What became of the requests so far."""

    accepted: int = 0  # the recording was decoded and queued
    completed: int = 0
    failed: int = 0  # the server's fault
    client_mistakes: int = 0  # no audio, a wrong form, too long: the server is well
    busy: int = 0  # no room
    abandoned: int = 0  # the client left


@dataclass(frozen=True)
class Recognition:
    """A transcript and what it took to get it."""

    transcript: Transcript
    took_s: float  # decoding, waiting and inference
    warnings: tuple[str, ...]

    @property
    def no_speech_reason(self) -> str | None:
        """Why there is no text, in words."""
        heard = self.transcript
        return _NO_SPEECH.get(heard.reason or "", _NOTHING_HEARD) if heard.no_speech else None

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
        self._decoding: set[asyncio.Future[Audio]] = set()
        self._stopped = False
        self.counts = Counts()

    def count_refused(self, *, busy: bool = False) -> None:
        if busy:
            self.counts.busy += 1
        else:
            self.counts.client_mistakes += 1

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
        with self._counted():
            options, notes = _options(language, itn)
            began = time.monotonic()
            audio = await self._decoded(source, name)
            future = self.worker.submit(audio.samples, options)
            self.counts.accepted += 1
            transcript = await asyncio.wrap_future(future)
            return Recognition(transcript, time.monotonic() - began, (*notes, *audio.warnings))

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            self.check_room()
        except Busy:
            self.count_refused(busy=True)
            raise
        self._in_flight += 1
        try:
            yield
            self.counts.completed += 1
        except (AudioError, UsageError, Busy) as error:
            self.count_refused(busy=isinstance(error, Busy))
            raise
        except asyncio.CancelledError:
            if self._stopped:
                self.counts.failed += 1
                raise Stopped from None
            self.counts.abandoned += 1
            raise
        except Exception:
            self.counts.failed += 1
            raise
        finally:
            self._in_flight -= 1

    async def _decoded(self, source: bytes | Path, name: str) -> Audio:
        loop = asyncio.get_running_loop()
        decoding = loop.run_in_executor(self._decoders, self._decode, source, name)
        self._decoding.add(decoding)
        try:
            return await decoding
        finally:
            self._decoding.discard(decoding)

    def health(self) -> dict[str, Any]:
        status, counts = self.worker.status(), self.counts
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
            "accepted": counts.accepted,
            "completed": counts.completed,
            "failed": counts.failed,
            "refused": counts.client_mistakes + counts.busy,
            "refused_because": {"client_mistake": counts.client_mistakes, "server_busy": counts.busy},
            "abandoned": counts.abandoned,
        }

    async def drain(self, within_s: float) -> None:
        """Take nothing new, finish what can be finished in time, and fail the rest with Stopped."""
        await asyncio.to_thread(self.worker.close, within_s)
        self._stopped = True
        for decoding in self._decoding:
            decoding.cancel()

    def close(self) -> None:
        self._decoders.shutdown(wait=False, cancel_futures=True)
        self.worker.close(0.0 if self._stopped else _DRAIN_S)

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
