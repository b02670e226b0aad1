"""Utterance lists and the files that command-line arguments mean.

Knows what columns mean and what makes a list unfit; formats are read by `lists`, decoding is done by `audio`, whose
names are offered here too. Knows nothing of models or metrics.
"""

from __future__ import annotations

import glob
import hashlib
import json
import math
import os
import re
import stat
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from svtool.assets import LANGUAGE_ALIASES, LANGUAGES
from svtool.audio import SAMPLE_RATE, Audio, PcmFormat, decode_audio, from_array
from svtool.audiofacts import audio_digest
from svtool.errors import AudioError, SvtoolError, UsageError, counted, shown
from svtool.lists import AUDIO_SUFFIXES, Fault, fault, read_listing, some
from svtool.lists.tables import AUDIO_COLUMNS, malformed_fault

__all__ = [
    "AUDIO_SUFFIXES",
    "SAMPLE_RATE",
    "Audio",
    "Input",
    "PcmFormat",
    "Survey",
    "Utterance",
    "UtteranceList",
    "audio_digest",
    "decode_audio",
    "expand_inputs",
    "from_array",
    "part_faults",
    "read_utterances",
    "survey",
]

_WELL_KNOWN = (".wav", ".flac", ".mp3", ".m4a", ".ogg", ".opus")  # named in a message that cannot name all

# our name first; then those of NeMo, FunASR, SenseVoice's own data files and Common Voice
_COLUMNS = {
    "audio": AUDIO_COLUMNS,
    "text": ("text", "target", "sentence", "transcript", "transcription"),
    "id": ("id", "key", "utt_id"),
    "language": ("language", "text_language", "lang", "locale"),
    "emotion": ("emotion", "emo_target"),
    "events": ("events", "event", "event_target"),
    "duration": ("duration", "duration_s"),
    "offset": ("offset",),  # NeMo: the utterance is `duration` seconds from here
    "part": ("part",),  # of `lists.kaldi`
}
_REGION_LANGUAGES = {"zh-hk": "yue", "cmn": "zh"}  # any other region is dropped: zh-CN is zh


@dataclass(frozen=True)
class Utterance:
    id: str
    audio: Path
    text: str | None = None
    language: str | None = None
    emotion: str | None = None
    events: tuple[str, ...] = ()
    duration_s: float | None = None
    part: tuple[float, float | None] | None = (
        None  # seconds from and to (None: the end), of a longer recording
    )
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class UtteranceList:
    """`digest` is the SHA-256 over each utterance's id, audio path (relative to the list if it lies under
    it), text, language, emotion, events and audio file size, in order: the same wherever the folder lies.
    Contents of audio files are not read for it: a file replaced by another of equal size goes unnoticed.
    """

    path: Path
    utterances: tuple[Utterance, ...]
    digest: str
    notes: tuple[str, ...] = ()  # what was taken for something else than it says, in the whole list

    def __len__(self) -> int:
        return len(self.utterances)

    def __iter__(self) -> Iterator[Utterance]:
        return iter(self.utterances)

    def take(self, count: int) -> UtteranceList:
        """`count` utterances spread evenly over the list (those at i * length // count), in its order; all of
        them when there are no more. The digest is that of a list of these alone."""
        if count < 1:
            raise UsageError(f"cannot take {count} utterances: ask for 1 or more")
        total = len(self.utterances)
        if count >= total:
            return self
        chosen = tuple(self.utterances[i * total // count] for i in range(count))
        return UtteranceList(self.path, chosen, _digest(chosen, self.path), self.notes)


@dataclass(frozen=True)
class Survey:
    """All of a list that can be understood, and everything that makes it unfit for use."""

    path: Path
    format: str
    utterances: tuple[Utterance, ...]
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]
    aliases: tuple[str, ...] = ()  # those of the notes that tell of misspelt languages


def read_utterances(spec: str | Path) -> UtteranceList:
    """Read a JSONL, TSV or CSV list, a Kaldi directory, a LibriSpeech or AISHELL tree, a `.trn`, or `tiny:NAME`.

    Audio paths are relative to the list. Everything wrong with the entries comes in one error.
    """
    found = survey(spec)
    faults = (*found.faults, *part_faults(found))
    if faults:
        raise SvtoolError(_refusal(found, faults))
    if not found.utterances:
        raise SvtoolError(f"{found.path} holds no utterances")
    notes = (*found.aliases, *_unknown_languages(found.utterances))
    return UtteranceList(found.path, found.utterances, _digest(found.utterances, found.path), notes)


def survey(spec: str | Path, audio: Path | None = None) -> Survey:
    """Read a list as far as it goes. `audio`: the folder of its audio, when that is not the list's own.

    Raises SvtoolError only where the whole cannot be read: absent, not text, of no known format.
    """
    path = _list_path(spec)
    if audio is not None and not audio.is_dir():
        raise SvtoolError(f"the audio folder {str(audio)!r} does not exist")
    listing = read_listing(path, audio)
    root = audio or _root(path)
    utterances: list[Utterance] = []
    malformed: list[str] = []
    misspelt: Counter[str] = Counter()
    for place, entry in listing.entries:
        try:
            known, extra = _by_our_names(entry)
            utterances.append(_utterance(known, extra, place, root))
        except SvtoolError as error:
            malformed.append(str(error))
        else:
            misspelt.update({_language_code(known.get("language"))} & LANGUAGE_ALIASES.keys())
    faults = (*listing.faults, *malformed_fault(malformed), *_faults(utterances))
    aliases = tuple(
        f"language {code!r} is read as {LANGUAGE_ALIASES[code]!r} ({counted(count, 'utterance')})"
        for code, count in misspelt.items()
    )
    return Survey(path, listing.format, tuple(utterances), faults, (*listing.notes, *aliases), aliases)


def _unknown_languages(utterances: Sequence[Utterance]) -> Iterator[str]:
    foreign = Counter(one.language for one in utterances if one.language and one.language not in LANGUAGES)
    if foreign:
        known = ", ".join(name for name in LANGUAGES if name not in ("auto", "nospeech"))
        named = [f"{shown(name)[:20]} ({count:,})" for name, count in foreign.most_common()]
        yield (
            f"{counted(foreign.total(), 'utterance')} in a language that the model does not know: {some(named)}; "
            f"it knows {known}"
        )


def _refusal(found: Survey, faults: Sequence[Fault]) -> str:
    check = f"see all with  svtool data check {found.path}"
    if malformed := [one for fault in faults if fault.kind == "malformed" for one in fault.names]:
        more = len(malformed) - 1
        return malformed[0] + (f"; and {counted(more, 'more malformed line')}: {check}" if more else "")
    whole = counted(len(found.utterances), "utterance")
    return (
        f"{found.path}: {'; '.join(map(str, faults))} among {whole}; audio paths are relative to "
        f"{_root(found.path)}; {check}"
    )


def _list_path(spec: str | Path) -> Path:
    if isinstance(spec, str) and spec.startswith("tiny:"):
        from svtool import tiny

        return tiny.render(spec.removeprefix("tiny:"))
    path = Path(spec)
    if path.name == "wav.scp":
        path = path.parent
    try:
        found = path.exists()
    except ValueError:
        found = False
    if not found:
        raise SvtoolError(f"utterance list {str(spec)!r} does not exist")
    return path


def _root(path: Path) -> Path:
    return path if path.is_dir() else path.parent


# ---- one entry to one utterance


def _utterance(known: Mapping[str, Any], extra: Mapping[str, str], place: str, root: Path) -> Utterance:
    written = _string(known.get("audio"), "audio", place)
    if written is None or not written.strip():
        raise SvtoolError(f"{place}: no audio file is named (column {' or '.join(_COLUMNS['audio'])})")
    return Utterance(
        id=_id(known.get("id"), place) or written,
        audio=_locate(written, root),
        text=_string(known.get("text"), "text", place),
        language=_language(known.get("language")),
        emotion=_tag(known.get("emotion")),
        events=_events(known.get("events")),
        duration_s=_seconds(known.get("duration"), "duration", place),
        part=_part(known, place),
        extra=extra,
    )


def _by_our_names(entry: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    known: dict[str, Any] = {}
    used: set[str] = set()
    for name, aliases in _COLUMNS.items():
        if alias := next((alias for alias in aliases if alias in entry), None):
            known[name] = entry[alias]
            used.add(alias)
    extra = {
        str(key): value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in entry.items()
        if key not in used
    }
    return known, extra


def _locate(written: str, root: Path) -> Path:
    """The file meant: as written, else one of the ways in which lists and folders come to differ."""
    path = root / written
    if _size(path):
        return path
    slashes = written.replace("\\", "/")  # a list made on Windows
    # Common Voice's tables name files that lie in `clips` beside the table
    others = [root / "clips" / written, root / slashes, root / "clips" / slashes, root / written.strip()]
    # macOS decomposes the letters of file names, lists made elsewhere do not
    others += [root / unicodedata.normalize(form, slashes) for form in ("NFC", "NFD")]
    return next((other for other in others if _size(other)), path)


def _string(value: Any, name: str, place: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise SvtoolError(f"{place}: the {name} is {_kind(value)}, not a string")
    return value


def _id(value: Any, place: str) -> str:
    if isinstance(value, bool | list | dict):  # numbers are common and name something
        raise SvtoolError(f"{place}: the id is {_kind(value)}, not a string")
    return "" if value is None else str(value)


def _kind(value: Any) -> str:
    """A JSON value with what it is, as the person who wrote it would say."""
    kinds = {bool: "true or false", list: "a list", dict: "an object"}
    return f"{json.dumps(value)[:40]}, {kinds.get(type(value), 'a number')}"


def _tag(value: Any) -> str | None:
    """`<|NEUTRAL|>` (SenseVoice's data files) or `NEUTRAL` -> `NEUTRAL`; empty -> None."""
    return re.sub(r"^<\|(.*)\|>$", r"\1", str(value or "").strip()) or None


def _language(value: Any) -> str | None:
    code = _language_code(value)
    return LANGUAGE_ALIASES.get(code, code) or None


def _language_code(value: Any) -> str:
    """As written, without its region; empty where there is none."""
    lower = (_tag(value) or "").lower().replace("_", "-")
    return _REGION_LANGUAGES.get(lower, lower.partition("-")[0])


def _events(value: Any) -> tuple[str, ...]:
    parts = value if isinstance(value, list) else re.split(r"[,\s]+", str(value or ""))
    return tuple(tag for tag in map(_tag, parts) if tag)


def _seconds(value: Any, name: str, place: str) -> float | None:
    if value is None or value == "":
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if isinstance(value, bool) or not 0 <= seconds < math.inf:
        raise SvtoolError(f"{place}: the {name} {value!r} is not a number of seconds")
    return seconds


def _part(known: Mapping[str, Any], place: str) -> tuple[float, float | None] | None:
    if isinstance(known.get("part"), tuple):
        start, end = known["part"]
        return start, end
    offset = _seconds(known.get("offset"), "offset", place)
    if not offset:
        return None
    duration = _seconds(known.get("duration"), "duration", place)
    return offset, None if duration is None else offset + duration


# ---- the list as a whole


def _faults(utterances: Sequence[Utterance]) -> Iterator[Fault]:
    doubled = [name for name, count in Counter(one.id for one in utterances).items() if count > 1]
    yield from fault("duplicate_id", "duplicate id", doubled)
    missing = [str(one.audio) for one in utterances if _size(one.audio) is None]
    yield from fault("audio_missing", "audio file", missing, "missing")


def part_faults(found: Survey) -> Iterator[Fault]:
    """Taken for the whole, a part of a recording would be scored against a text that is not its own."""
    cut = [one.id for one in found.utterances if one.part is not None]
    command = f"svtool data convert {found.path} -o FOLDER/list.jsonl"
    yield from fault(
        "part", "utterance", cut, f"cut out of longer recordings: write them to files with  {command}"
    )


def _size(path: Path) -> int | None:
    """Bytes of a file; None when there is none (or the name cannot be one)."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _digest(utterances: Sequence[Utterance], path: Path) -> str:
    root = _root(path)
    rows = [
        [
            one.id,
            (one.audio.relative_to(root) if one.audio.is_relative_to(root) else one.audio).as_posix(),
            one.text,
            one.language,
            one.emotion,
            one.events,
            _size(one.audio),
        ]
        for one in utterances
    ]
    return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode("ascii")).hexdigest()


# ---- command-line arguments


@dataclass(frozen=True)
class Input:
    """What one command-line argument, or a part of it, means: a file, standard input, or nothing that can be read."""

    name: str  # as results call it: the path as given or found, "stdin" for "-"
    path: Path | None = None
    error: AudioError | None = None  # why there is neither


STDIN = "stdin"


def expand_inputs(args: Sequence[str]) -> list[Input]:
    """Inputs meant by `args`, in order, each once: names, glob patterns, directories (recursive, audio suffixes
    only, hidden names left out), "-" for standard input.

    A file that does not exist stays in the result: its reader reports it. A pattern that matches nothing and a
    directory without audio are inputs with an error.
    """
    found: dict[str, Input] = {}
    for arg in args:
        if not arg:
            raise UsageError("an empty file name was given")
        if arg == "-":
            found.setdefault("-", Input(STDIN))
            continue
        for one in _expand(arg):
            found.setdefault(os.path.abspath(one.name), one)
    return list(found.values())


def _expand(arg: str) -> Iterator[Input]:
    # an existing name comes first: `a[1].wav` is a file as well as a pattern
    is_pattern = glob.has_magic(arg) and not os.path.lexists(arg)
    names = sorted(glob.glob(arg, recursive=True)) if is_pattern else [arg]
    if not names:
        yield Input(arg, error=AudioError(f"{arg!r} matches nothing", reason="missing"))
    for name in names:
        if os.path.isdir(name):
            yield from _in_folder(name)
        else:
            yield Input(name, Path(name))


def _in_folder(folder: str) -> Iterator[Input]:
    unread: list[OSError] = []
    audio = list(_audio_files(folder, unread.append))
    yield from (Input(str(path), path) for path in audio)
    for error in unread:
        name = str(error.filename)
        yield Input(
            name, error=AudioError(f"{shown(name)} cannot be read: {error.strerror}", reason="missing")
        )
    if not audio and not unread:
        kinds = f"{', '.join(_WELL_KNOWN)} and {len(AUDIO_SUFFIXES) - len(_WELL_KNOWN)} more"
        message = (
            f"{shown(folder)} holds no audio files (looked for {kinds}): name a file of another ending itself"
        )
        yield Input(folder, error=AudioError(message, reason="missing"))


def _audio_files(folder: str, unread: Callable[[OSError], None]) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder, onerror=unread):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(parent, name)
            if name.startswith(".") or path.suffix.lower() not in AUDIO_SUFFIXES:
                continue
            # a pipe or a device that lies in a folder would be waited for; a link to nowhere is reported
            if os.path.isfile(path) or not os.path.exists(path):
                yield path
