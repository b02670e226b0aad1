"""Texts that were made before, as one side of a comparison: another tool's or an earlier run's.

Reads the JSON lines of `svtool transcribe -f json` and of other tools, Kaldi `text` files, SCTK `.trn`, the results
file of an earlier `svtool validate-wer --results`, and the report that names one. Knows these formats and how their
lines find their utterances. Knows nothing of scoring.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from svtool.errors import SvtoolError, UsageError, counted, shown
from svtool.manifest import sha256_file
from svtool.wer import journal
from svtool.wer.sides import ROLES, Answer, Plain, Role, Side

if TYPE_CHECKING:
    from svtool.utterances import Utterance, UtteranceList

REPORT_SCHEMA = "svtool.validate-wer/1"
_ARTIFACTS = (".onnx", ".plan", ".pt")
_MODELS = ("model.onnx", "model.pt")  # of a folder that is a model, whatever else lies in it
_IDS = ("id", "key", "utt_id", "utterance_id", "uttid", "utt")
_AUDIO = ("audio", "audio_filepath", "path", "wav", "file", "filename")
_TEXTS = ("text", "pred_text", "hypothesis", "hyp", "prediction", "transcription", "transcript")
_TRN = re.compile(r"^(.*?)\s*\(([^()\s]+)\)\s*$", re.DOTALL)
_FIRST = 5  # names given in a message about many

Keyed = tuple[str | None, str | None, Answer]  # id, audio, what was heard
Lines = Callable[[], Iterator[Keyed]]


@dataclass(frozen=True)
class Named:
    """A saved file as a command names it; `FILE:baseline` and `FILE:candidate` choose a side of a results file."""

    path: Path
    role: Role | None = None


def named(argument: Path) -> Named | None:
    """What the argument means if it means saved texts; None for an artifact."""
    text = str(argument)
    for role in ROLES:
        if text.endswith(f":{role}") and not argument.exists():
            return Named(Path(text.removesuffix(f":{role}")), role)
    if argument.is_dir():
        is_model = any((argument / name).exists() for name in _MODELS)
        return Named(argument / "text") if (argument / "text").is_file() and not is_model else None
    if argument.suffix.lower() in _ARTIFACTS:
        return None
    known = argument.suffix.lower() in (".jsonl", ".json", ".ndjson", ".trn", ".txt", ".hyp")
    return Named(argument) if argument.is_file() or known else None


def open_saved(saved: Named, utterances: UtteranceList, role: Role) -> Side:
    """The side whose answers are read from a file, after every line of it has found its utterance.

    Of a results file the same role is taken unless the argument chose one.
    """
    if not saved.path.is_file():
        raise SvtoolError(f"{saved.path} does not exist: name saved texts, a model or an engine")
    source = _source(saved.path, saved.role or role)
    if saved.role is not None and not source.has_sides:
        raise UsageError(f"{saved.path} holds the texts of one side only: leave :{saved.role} out")
    matched = _match(source.lines(), utterances.utterances, source.path)
    if source.list_digest not in (None, utterances.digest):
        matched.notes.append("they were made on another list or selection, and were matched by their ids")

    def transcribe(asked: Sequence[Utterance]) -> Iterator[tuple[int, Answer]]:
        wanted = {matched.positions[one.id]: at for at, one in enumerate(asked)}
        for number, (_, _, answer) in enumerate(source.lines()):
            if number in wanted:
                yield wanted[number], answer

    facts = source.facts
    notes = [
        f"its texts were saved in {source.path}; nothing was run for them now, and no logits could be compared",
        *matched.notes,
    ]
    conditions: dict[str, Plain] = dict(facts.get("conditions") or {})
    conditions["saved_texts"] = f"{source.path.name} sha256 {sha256_file(source.path)[:16]}"
    return Side(
        name=str(facts.get("name") or saved.path.name),
        transcribe=transcribe,
        digest=facts.get("sha256"),
        ran_digest=facts.get("ran_sha256"),
        provider=facts.get("provider"),
        executed=False,
        note="; ".join(notes),
        conditions=conditions,
    )


# --- formats -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    path: Path  # of the file with the texts
    lines: Lines
    facts: Mapping[str, Any] = field(default_factory=dict)  # of the side, from a results file
    list_digest: str | None = None
    has_sides: bool = False


def _source(path: Path, role: Role) -> _Source:
    first = next((line for _, line in _lines(path)), None)
    if first is None:
        raise SvtoolError(f"{path} is empty: it holds no texts")
    if path.suffix.lower() == ".trn":
        return _Source(path, lambda: _trn(path))
    if first.lstrip().startswith("{"):
        return _json_source(path, first, role)
    if _TRN.match(first) and all(_TRN.match(line) for _, line in _lines(path) if not line.startswith(";;")):
        return _Source(path, lambda: _trn(path))
    return _Source(path, lambda: _kaldi(path))


def _json_source(path: Path, first: str, role: Role) -> _Source:
    try:
        head = json.loads(first)
    except ValueError:
        return _of_report(path, role)  # written over many lines
    schema = head.get("schema") if isinstance(head, dict) else None
    if schema == journal.SCHEMA:
        if role not in head:
            other = next((one for one in ROLES if one in head), None)
            raise SvtoolError(f"{path} has no {role}: it holds the texts of one side, {path}:{other}")
        facts, digest = head[role], head.get("data", {}).get("sha256")
        return _Source(path, lambda: _of_results(path, role), facts, digest, has_sides=True)
    if schema == REPORT_SCHEMA:
        return _of_report(path, role)
    return _Source(path, lambda: _json_lines(path))


def _of_report(path: Path, role: Role) -> _Source:
    try:
        report = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise SvtoolError(
            f"{path} holds neither JSON lines nor a report: texts are saved by  svtool transcribe -f json"
        ) from error
    if not isinstance(report, dict) or report.get("schema") != REPORT_SCHEMA:
        raise SvtoolError(f"{path} is no report of svtool validate-wer, and holds no JSON lines either")
    kept = (report.get("data") or {}).get("results")
    if not kept:
        raise SvtoolError(
            f"{path} is a report without texts, and drift needs them: run that comparison again with  --results FILE"
        )
    results = next((one for one in (Path(kept), path.parent / Path(kept).name) if one.is_file()), None)
    if results is None:
        raise SvtoolError(f"{path} keeps its texts in {kept}, which is missing: bring it along, or run again")
    return _source(results, role)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number and text of each line that is not empty; read as it goes, for the file may be long."""
    with path.open("rb") as stream:
        for number, data in enumerate(stream, 1):
            try:
                line = data.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise SvtoolError(f"{path}, line {number}: not UTF-8 text; save it as UTF-8") from error
            if line.strip():
                yield number, line


def _kaldi(path: Path) -> Iterator[Keyed]:
    for _, line in _lines(path):
        key, *rest = line.split(maxsplit=1)
        yield key, None, Answer("".join(rest).strip())


def _trn(path: Path) -> Iterator[Keyed]:
    for number, line in _lines(path):
        if line.startswith(";;"):  # a comment
            continue
        found = _TRN.match(line)
        if found is None:
            raise SvtoolError(
                f"{path}, line {number}: no id in brackets at its end; a .trn line is  the text (id)"
            )
        yield found[2], None, Answer(found[1].strip())


def _json_lines(path: Path) -> Iterator[Keyed]:
    for number, line in _lines(path):
        place = f"{path}, line {number}"
        found = _object(line, place)
        yield *_keys(found, place), _answer(found, place)


def _of_results(path: Path, role: Role) -> Iterator[Keyed]:
    for number, line in _lines(path):
        try:
            found = _object(line, f"{path}, line {number}")
        except SvtoolError:
            return  # torn by a kill: what is missing will be named
        # an answer with an error may have a better one behind it
        if found.get("side") == role and not found.get("error"):
            yield str(found["id"]), None, journal.answer_of(found)


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SvtoolError(f"{place}: not valid JSON ({error}); one object stands on each line") from error
    if not isinstance(found, dict):
        raise SvtoolError(f"{place}: not a JSON object; one stands on each line")
    return found


def _keys(found: Mapping[str, Any], place: str) -> tuple[str | None, str | None]:
    key = next((str(found[name]) for name in _IDS if found.get(name) not in (None, "")), None)
    audio = next((str(found[name]) for name in _AUDIO if found.get(name)), None)
    if key is None and audio is None:
        raise SvtoolError(f"{place}: tells neither an id nor an audio file to match it by")
    return key, audio


def _answer(found: Mapping[str, Any], place: str) -> Answer:
    if found.get("error"):
        return Answer(error=str(found["error"]))
    text = next((found[name] for name in _TEXTS if name in found), None)
    if not isinstance(text, str):
        raise SvtoolError(f"{place}: has no text (looked for {', '.join(_TEXTS)})")
    events = found.get("events") or ()
    duration_s = found.get("duration_s")
    return Answer(
        text,
        language=found.get("language"),
        emotion=found.get("emotion"),
        events=tuple(events) if isinstance(events, list) else (),
        itn=found.get("itn"),
        duration_s=float(duration_s) if isinstance(duration_s, int | float) else None,
    )


# --- lines and utterances ------------------------------------------------------------------------


@dataclass
class _Matched:
    positions: dict[str, int]  # id of the utterance -> number of its line among the keyed ones
    notes: list[str]


def _match(lines: Iterable[Keyed], utterances: Sequence[Utterance], path: Path) -> _Matched:
    """Each utterance must have one line; lines without an utterance are counted and named."""
    finder = _Finder(utterances, path)
    position = np.full(len(utterances), -1, dtype=np.int64)
    doubled: list[str] = []
    unknown: list[str] = []
    for number, (key, audio, _) in enumerate(lines):
        index = finder(key, audio)
        if index is None:
            unknown.append(key or audio or "")
        elif position[index] >= 0:
            doubled.append(utterances[index].id)
        else:
            position[index] = number
    if doubled:
        raise SvtoolError(
            f"{path} has {counted(len(doubled), 'text')} too many ({_some(doubled)}): keep one of each utterance"
        )
    missing = [one.id for one, at in zip(utterances, position, strict=True) if at < 0]
    if missing:
        others = (
            f"; {len(unknown):,} of its lines belong to no utterance ({_some(unknown)})" if unknown else ""
        )
        raise SvtoolError(
            f"{path} has no text for {len(missing):,} of {counted(len(utterances), 'utterance')} "
            f"({_some(missing)}){others}: save texts of the same list, or leave those out of it"
        )
    notes = []
    if unknown:
        notes.append(
            f"{counted(len(unknown), 'saved text')} without an utterance here left out ({_some(unknown)})"
        )
    if finder.by_name:
        notes.append(f"{counted(finder.by_name, 'saved text')} matched by the name of the audio file alone")
    places = dict(zip((one.id for one in utterances), position.tolist(), strict=True))
    return _Matched(places, notes)


class _Finder:
    """An id first, then the audio file's path, then its name: each only where it means one utterance."""

    def __init__(self, utterances: Sequence[Utterance], path: Path) -> None:
        self._folder = path.parent
        self._ids = {one.id: index for index, one in enumerate(utterances)}
        self._paths = _unique(str(one.audio.absolute()) for one in utterances)
        self._names = _unique(one.audio.name for one in utterances)
        self.by_name = 0

    def __call__(self, key: str | None, audio: str | None) -> int | None:
        if key is not None:
            return self._ids.get(key)
        assert audio is not None
        for place in (Path(audio), self._folder / audio):
            if (index := self._paths.get(str(place.absolute()))) is not None:
                return index
        index = self._names.get(Path(audio).name)
        if index is None:
            return self._ids.get(Path(audio).stem)
        self.by_name += 1
        return index


def _unique(names: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    doubled = set()
    for index, name in enumerate(names):
        if name in found:
            doubled.add(name)
        found[name] = index
    return {name: index for name, index in found.items() if name not in doubled}


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(shown, names[:_FIRST])) + (", …" if len(names) > _FIRST else "")
