"""Utterances to answers in blocks of like length, by one recognizer or by several processes with one each.

The blocks depend on the utterances alone, so that any number of processes makes the same batches, and answers come
in the same order. Knows recognizers and processes. Knows nothing of sides or scores.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svtool.errors import ArtifactError, AudioError, SvtoolError
from svtool.recognizer import Options, Recognizer, open_recognizer
from svtool.wer.sides import Answer

if TYPE_CHECKING:
    from concurrent.futures import Future
    from multiprocessing.connection import Connection

    from svtool.config import OrtConfig
    from svtool.utterances import Utterance

# What is lost when a run is killed, and what a recognizer sorts and holds at once.
BLOCK_S = 240.0
BLOCK_UTTERANCES = 256
_GUESSED_S = 8.0  # of an utterance whose length the list does not tell


@dataclass(frozen=True)
class Opening:
    """How to open one more recognizer of the same artifact, in another process too."""

    artifact: Path
    device: str = "auto"
    threads: int | None = None
    settings: OrtConfig | None = None

    def __call__(self) -> Recognizer:
        return open_recognizer(
            self.artifact, device=self.device, threads=self.threads, settings=self.settings
        )


def answers(
    recognizer: Recognizer,
    utterances: Sequence[Utterance],
    options: Options,
    *,
    jobs: int = 1,
    opening: Opening | None = None,
) -> Iterator[tuple[int, Answer]]:
    """(index, answer), longest first. `opening` makes the recognizers of `jobs` processes."""
    planned = blocks(utterances)
    jobs = min(jobs, len(planned))
    asked = ([utterances[index] for index in block] for block in planned)
    if jobs > 1 and opening is not None:
        share = opening.threads or max(1, _cores() // jobs)
        found = _in_processes(jobs, replace(opening, threads=share), asked, options)
    else:
        found = (list(_transcribed(recognizer, one, options)) for one in asked)
    for block, heard in zip(planned, found, strict=True):
        yield from zip(block, heard, strict=True)


def blocks(utterances: Sequence[Utterance]) -> list[list[int]]:
    """Indices, longest first: little padding, and what is too long for the memory shows at once."""
    lengths = [one.duration_s or 0.0 for one in utterances]
    found: list[list[int]] = []
    seconds = 0.0
    for index in sorted(range(len(lengths)), key=lambda one: -lengths[one]):
        length = lengths[index] or _GUESSED_S
        if not found or len(found[-1]) == BLOCK_UTTERANCES or seconds + length > BLOCK_S:
            found.append([])
            seconds = 0.0
        found[-1].append(index)
        seconds += length
    return found


def _transcribed(
    recognizer: Recognizer, utterances: Sequence[Utterance], options: Options
) -> Iterator[Answer]:
    for result in recognizer.transcribe_files([one.audio for one in utterances], options):
        if isinstance(result, SvtoolError):
            yield Answer(error=str(result), bad_audio=isinstance(result, AudioError))
        else:
            yield Answer.of(result, result.duration_s)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- processes -----------------------------------------------------------------------------------


def _in_processes(
    jobs: int, opening: Opening, asked: Iterable[list[Utterance]], options: Options
) -> Iterator[list[Answer]]:
    """In order; a few blocks more than there are processes are on their way at a time."""
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    context = get_context("spawn")  # a fork would copy the parent's runtime threads in an unknown state
    ours, theirs = context.Pipe(duplex=False)[::-1]  # children leave when our end closes, however we go
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(theirs, opening))
    waiting: deque[Future[list[Answer] | str]] = deque()
    try:
        for block in asked:
            waiting.append(pool.submit(_block, block, options))
            if len(waiting) > jobs + 2:
                yield _answered(waiting.popleft())
        while waiting:
            yield _answered(waiting.popleft())
        pool.shutdown()
    except BrokenProcessPool as error:
        raise SvtoolError(
            f"a process that ran {opening.artifact} ended by itself (out of memory?): use fewer --jobs; "
            "with --results FILE the answers so far are kept"
        ) from error
    finally:
        ours.close()
        pool.shutdown(wait=True, cancel_futures=True)
        theirs.close()


def _answered(future: Future[list[Answer] | str]) -> list[Answer]:
    found = future.result()
    if isinstance(found, str):
        raise ArtifactError(found)
    return found


_child: dict[str, Any] = {}  # of a process of the pool: its opening, then its recognizer


def _begin(parent: Connection, opening: Opening) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to us too; the parent decides
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    _child["opening"] = opening


def _leave_with(parent: Connection) -> None:
    with contextlib.suppress(OSError):
        parent.poll(None)
    os._exit(1)


def _block(utterances: list[Utterance], options: Options) -> list[Answer] | str:
    """An error that concerns them all comes as its text: not every exception can be sent."""
    try:
        if "recognizer" not in _child:
            _child["recognizer"] = _child["opening"]()
        return list(_transcribed(_child["recognizer"], utterances, options))
    except SvtoolError as error:
        return str(error)
