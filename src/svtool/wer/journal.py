"""Answers of both sides on disk, one JSON line each, so that a killed comparison goes on where it was.

Memory holds two numbers per answer; texts are read again when they are scored or shown. Knows lines and what they
must belong to. Knows nothing of scoring or engines.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, overload

import numpy as np
import numpy.typing as npt

from svtool.errors import SvtoolError, counted
from svtool.manifest import sha256_bytes
from svtool.wer.sides import ROLES, Answer, Role, all_failed, each_once

if TYPE_CHECKING:
    from svtool.progress import Progress
    from svtool.utterances import Utterance
    from svtool.wer.sides import Side

SCHEMA = "svtool.validate-wer.results/1"
_ANSWER = tuple(Answer.__dataclass_fields__)


class Stored(Sequence[Answer]):
    """One side's answers in the order of the utterances, read from the disk one at a time."""

    def __init__(self, results: Results, role: Role) -> None:
        self._results, self._role = results, role
        self._last: tuple[int, Answer] | None = None  # scoring asks several times for the same one

    def __len__(self) -> int:
        return len(self._results.utterances)

    @overload
    def __getitem__(self, index: int) -> Answer: ...
    @overload
    def __getitem__(self, index: slice) -> list[Answer]: ...
    def __getitem__(self, index: int | slice) -> Answer | list[Answer]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        if self._last is None or self._last[0] != index:
            self._last = index, self._results.read(self._role, index)
        return self._last[1]


class Results:
    """The results file: a head that tells what was compared, then a line per side and utterance as they come.

    Lines are on their way to the disk as soon as they are known: killing the process loses none. Without a path the
    file is a temporary one without a name. A file of another comparison is refused, never overwritten.
    """

    def __init__(
        self, path: Path | None, utterances: Sequence[Utterance], head: Mapping[str, Any] | None = None
    ) -> None:
        self.path, self.utterances = path, utterances
        self._places: dict[Role, npt.NDArray[np.int64]] = {  # byte of the line, -1 = not answered yet
            role: np.full(len(utterances), -1, dtype=np.int64) for role in ROLES
        }
        self._lengths = {role: np.zeros(len(utterances), dtype=np.int32) for role in ROLES}
        self._scores: set[str] = set()  # what the counts in the file were made with
        self._file = _open(path)
        try:
            self._resume(dict(head or {}))
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Results:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def answered(self, role: Role) -> int:
        return int((self._places[role] >= 0).sum())

    def missing(self, role: Role) -> list[int]:
        found: list[int] = np.flatnonzero(self._places[role] < 0).tolist()
        return found

    def has(self, role: Role, index: int) -> bool:
        return bool(self._places[role][index] >= 0)

    def put(self, role: Role, index: int, answer: Answer) -> None:
        line = {"side": role, "index": index, "id": self.utterances[index].id} | asdict(answer)
        self._places[role][index], self._lengths[role][index] = self._append(line)

    def read(self, role: Role, index: int) -> Answer:
        self._file.seek(int(self._places[role][index]))
        return answer_of(json.loads(self._file.read(int(self._lengths[role][index]))))

    def answers(self, role: Role) -> Stored:
        return Stored(self, role)

    def put_scores(self, made_with: str, lines: Iterator[dict[str, Any]]) -> None:
        """Counts of every utterance, once per way of counting (`made_with`: normaliser and tokeniser)."""
        if self.path is None or made_with in self._scores:
            return
        for line in lines:
            self._append({"side": "scores"} | line, flush=False)
        self._append({"side": "scored", "with": made_with})  # last: without it they are written again
        self._scores.add(made_with)

    def _append(self, line: Mapping[str, Any], *, flush: bool = True) -> tuple[int, int]:
        data = _encoded(line)
        place = self._file.seek(0, os.SEEK_END)
        self._file.write(data)
        if flush:
            self._file.flush()
        return place, len(data)

    def _resume(self, head: dict[str, Any]) -> None:
        head = {"schema": SCHEMA, "key": _key(head)} | head
        self._file.seek(0)
        place = 0
        for number, line in enumerate(self._file):
            if not line.endswith(b"\n"):  # torn by the kill
                break
            found = self._parsed(line, number)
            if number == 0:
                self._check_head(found, head)
            else:
                self._take(found, place, len(line), number)
            place += len(line)
        self._file.truncate(place)
        if place == 0:
            self._append(head)

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise SvtoolError(
                f"{self.path}, line {number + 1}: this is no results file of svtool validate-wer, or it was damaged: "
                "name another file with --results"
            )
        return found

    def _check_head(self, found: Mapping[str, Any], head: Mapping[str, Any]) -> None:
        if found.get("schema") != SCHEMA:
            raise SvtoolError(f"{self.path} is no results file of svtool validate-wer: name another")
        if found.get("key") != head["key"]:
            raise SvtoolError(
                f"{self.path} holds the results of another comparison ({_difference(found, head)}): name another file "
                "with --results, or remove this one"
            )

    def _take(self, line: Mapping[str, Any], place: int, length: int, number: int) -> None:
        role, index = line.get("side"), line.get("index")
        if role == "scored":
            self._scores.add(str(line.get("with")))
        if role not in ROLES:
            return
        listed = isinstance(index, int) and 0 <= index < len(self.utterances)
        if not isinstance(index, int) or not listed or self.utterances[index].id != line.get("id"):
            raise SvtoolError(
                f"{self.path}, line {number + 1}: utterance {line.get('id')!r} is not number {index} of the list: "
                "name another file with --results"
            )
        if line.get("error") is None:  # what failed is tried again: its file may have been put right
            self._places[role][index], self._lengths[role][index] = place, length


def fill(results: Results, role: Role, side: Side, progress: Progress, *, listed: str | None = None) -> None:
    """Ask the side for every answer that is not there yet. `listed`: the list, as commands call it."""
    missing = results.missing(role)
    if done := len(results.utterances) - len(missing):
        progress.note(f"{counted(done, 'answer')} of {side.name} found in {results.path}")
    asked = [results.utterances[index] for index in missing]
    # a bar of seconds tells the time left, one of utterances sorted by length does not
    lengths = [one.duration_s or 0.0 for one in asked]
    timed = bool(lengths) and all(lengths)
    unit = " (seconds of audio)" if timed else ""
    progress.stage(f"Transcribing with {side.name}{unit}", sum(lengths) if timed else len(asked))
    failed = 0
    try:
        for at, answer in each_once(side.name, side.transcribe, asked) if asked else ():
            results.put(role, missing[at], answer)
            failed += answer.error is not None
            progress.advance(lengths[at] if timed else 1)
    except KeyboardInterrupt:
        if results.path is not None:
            progress.note(f"the answers so far are kept in {results.path}: the same command goes on there")
        raise
    if failed == len(results.utterances):
        raise all_failed(side.name, results.answers(role), listed)


def answer_of(line: Mapping[str, Any]) -> Answer:
    values = {name: line[name] for name in _ANSWER if name in line}
    return Answer(**values | {"events": tuple(values.get("events") or ())})


def head_of(sides: Mapping[Role, Side], data: Mapping[str, str]) -> dict[str, Any]:
    """All that the answers depend on. Scoring is not among it: texts are scored anew each time."""
    listed = {key: data[key] for key in ("list", "sha256") if key in data}
    return {"data": listed} | {role: side_facts(side) for role, side in sides.items()}


def side_facts(side: Side) -> dict[str, Any]:
    return {
        "name": side.name,
        "sha256": side.digest,
        "ran_sha256": side.ran_digest,
        "provider": side.provider,
        "executed": side.executed,
        "conditions": dict(side.conditions),
    }


def _key(head: Mapping[str, Any]) -> str:
    """Paths and names are left out where a digest tells what was meant."""
    described = [head.get("data", {}).get("sha256")]
    for role in ROLES:
        side = dict(head.get(role) or {})
        if side.get("sha256"):
            side.pop("name")
        described.append(side)
    return sha256_bytes(json.dumps(described, sort_keys=True).encode())


def _encoded(line: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half a surrogate pair, which a file of UTF-8 cannot hold
        text = json.dumps(line, separators=(",", ":")).encode()
    return text + b"\n"


def _difference(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """The first thing that differs, in words."""
    for part in ("data", *ROLES):
        here, there = found.get(part), wanted.get(part)
        if here == there or not isinstance(here, dict) or not isinstance(there, dict):
            continue
        for key in there:
            if here.get(key) != there[key]:
                return f"{part}: {key} {here.get(key)!r} there, {there[key]!r} now"
    return "of other options"


def _open(path: Path | None) -> BinaryIO:
    if path is None:
        return tempfile.TemporaryFile()
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    file = os.fdopen(descriptor, "r+b")
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # Windows: two runs on one file are then the user's to avoid
        pass
    except OSError as error:
        file.close()
        raise SvtoolError(
            f"{path} is in use by another svtool validate-wer: wait for it, or name another file"
        ) from error
    return file
