"""One thread that owns a recognizer, and the bounded queue in front of it.

Knows nothing of HTTP or of files: waveforms go in, futures come out, and every future is resolved whatever
happens. Waiting requests that ask for the same options run as one batch.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Protocol

from svtool.backends import FloatArray
from svtool.errors import SvtoolError
from svtool.frontend import SAMPLE_RATE
from svtool.recognizer import Options, Transcript

_START_RTF = 0.1  # processing seconds per audio second, until something has been measured
_LONGEST_RETRY_S = 60


class Transcriber(Protocol):
    """What the worker drives; `recognizer.Recognizer` is one."""

    def transcribe(
        self, waveforms: Sequence[FloatArray], options: Options | None = None
    ) -> list[Transcript | SvtoolError]: ...

    def close(self) -> None: ...


class Busy(SvtoolError):
    """The queue is full. `retry_after_s` is when it should have room again."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"the server is busy: try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class Stopped(SvtoolError):
    """The worker is stopping or has died."""

    def __init__(self, reason: str = "the server is stopping") -> None:
        super().__init__(reason)


@dataclass(frozen=True)
class QueueLimits:
    """How much may wait, and how much runs at once. A single request longer than a limit still runs, alone."""

    waiting_n: int = 64
    waiting_s: float = 1800.0  # audio seconds
    batch_n: int = 8
    batch_s: float = 60.0  # audio seconds


@dataclass(frozen=True)
class WorkerStatus:
    alive: bool
    waiting: int
    waiting_s: float  # audio seconds
    busy_s: float | None  # how long the batch that runs now has been running
    last_success_age_s: float | None
    completed: int
    failed: int


@dataclass(eq=False)
class _Job:
    samples: FloatArray  # [N] mono, 16 kHz
    options: Options
    future: Future[Transcript] = field(default_factory=Future)

    @property
    def duration_s(self) -> float:
        return len(self.samples) / SAMPLE_RATE


class Worker:
    """Runs jobs on one thread, which also opens and closes the transcriber."""

    def __init__(self, opener: Callable[[], Transcriber], limits: QueueLimits | None = None) -> None:
        self.limits = limits or QueueLimits()
        self._opener = opener
        self._opened: Future[None] = Future()
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._running: list[_Job] = []
        self._stopping = False
        self._rtf = _START_RTF
        self._began: float | None = None
        self._last_success: float | None = None
        self._completed = 0
        self._failed = 0
        self._thread = threading.Thread(target=self._run, name="svtool-worker", daemon=True)

    def start(self) -> None:
        """Open the transcriber on the worker's thread; raises what opening raises."""
        self._thread.start()
        self._opened.result()

    def submit(self, samples: FloatArray, options: Options) -> Future[Transcript]:
        """Queue a waveform f32 [N]. Raises Busy when the queue is full, Stopped when nobody will serve it."""
        job = _Job(samples, options)
        with self._changed:
            if self._stopping or not self._thread.is_alive():
                raise Stopped() if self._stopping else Stopped("the worker has died: restart the server")
            if not self._has_room(job.duration_s):
                raise Busy(self._retry_after_s())
            self._jobs.append(job)
            self._changed.notify()
        job.future.add_done_callback(lambda future: self._drop(job) if future.cancelled() else None)
        return job.future

    def retry_after_s(self) -> int:
        with self._changed:
            return self._retry_after_s()

    def status(self) -> WorkerStatus:
        now = time.monotonic()
        with self._changed:
            return WorkerStatus(
                alive=self._thread.is_alive(),
                waiting=len(self._jobs),
                waiting_s=sum(job.duration_s for job in self._jobs),
                busy_s=None if self._began is None else now - self._began,
                last_success_age_s=None if self._last_success is None else now - self._last_success,
                completed=self._completed,
                failed=self._failed,
            )

    def close(self, drain_s: float = 5.0) -> None:
        """Take nothing new, finish what waits within `drain_s`, and fail the rest."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(drain_s)
        self._fail_all(Stopped())

    def _has_room(self, duration_s: float) -> bool:
        if not self._jobs:
            return True
        waiting_s = sum(job.duration_s for job in self._jobs)
        return len(self._jobs) < self.limits.waiting_n and waiting_s + duration_s <= self.limits.waiting_s

    def _retry_after_s(self) -> int:
        audio_s = sum(job.duration_s for job in (*self._jobs, *self._running))
        return max(1, min(_LONGEST_RETRY_S, round(audio_s * self._rtf)))

    def _drop(self, job: _Job) -> None:
        with self._changed:
            if job in self._jobs:
                self._jobs.remove(job)

    def _run(self) -> None:
        try:
            transcriber = self._opener()
        except BaseException as error:  # noqa: BLE001 - whatever it is, `start` raises it in the caller's thread
            self._opened.set_exception(error)
            return
        self._opened.set_result(None)
        try:
            while self._take():
                self._serve(transcriber)
        finally:
            self._fail_all(Stopped("the worker has died: restart the server"))
            transcriber.close()

    def _take(self) -> bool:
        """Wait for work and move the next batch to `_running`. False = stopping, and nothing is left."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._stopping)
            if not self._jobs:
                return False
            picked = [self._jobs[0]]
            budget_s = self.limits.batch_s - picked[0].duration_s
            for job in list(self._jobs)[1:]:
                if len(picked) == self.limits.batch_n:
                    break
                if job.options == picked[0].options and job.duration_s <= budget_s:
                    picked.append(job)
                    budget_s -= job.duration_s
            for job in picked:
                self._jobs.remove(job)
            self._running = picked
            self._began = time.monotonic()
            return True

    def _serve(self, transcriber: Transcriber) -> None:
        wanted = [job for job in self._running if job.future.set_running_or_notify_cancel()]
        began = time.monotonic()
        results = _transcribe(transcriber, wanted) if wanted else []
        with self._changed:
            self._measure(results, sum(job.duration_s for job in wanted), time.monotonic() - began)
            self._running, self._began = [], None
        for job, result in zip(wanted, results, strict=True):
            _resolve(job.future, result)

    def _measure(self, results: list[Transcript | SvtoolError], audio_s: float, took_s: float) -> None:
        failed = sum(isinstance(result, SvtoolError) for result in results)
        self._failed += failed
        self._completed += len(results) - failed
        if failed < len(results):
            self._last_success = time.monotonic()
            self._rtf += 0.2 * (took_s / max(audio_s, 0.1) - self._rtf)

    def _fail_all(self, reason: SvtoolError) -> None:
        with self._changed:
            left = [*self._running, *self._jobs]
            self._jobs.clear()
            self._running = []
        for job in left:
            _resolve(job.future, reason)


def _resolve(future: Future[Transcript], result: Transcript | SvtoolError) -> None:
    # both sides may be first when the server stops, and the client may have cancelled
    with contextlib.suppress(InvalidStateError):
        if isinstance(result, SvtoolError):
            future.set_exception(result)
        else:
            future.set_result(result)


def _transcribe(transcriber: Transcriber, jobs: list[_Job]) -> list[Transcript | SvtoolError]:
    """One result for every job. When the batch fails as a whole, each job runs alone, so one cannot fail its mates."""
    try:
        results = transcriber.transcribe([job.samples for job in jobs], jobs[0].options)
        if len(results) != len(jobs):
            raise SvtoolError(f"the engine gave {len(results)} results for {len(jobs)} requests")
    except Exception as error:  # noqa: BLE001 - the worker outlives anything that a request can cause
        if len(jobs) > 1:
            return [_transcribe(transcriber, [job])[0] for job in jobs]
        if isinstance(error, SvtoolError):
            return [error]
        failure = SvtoolError(f"the engine failed: {type(error).__name__}: {error}")
        failure.__cause__ = error
        return [failure]
    return results
