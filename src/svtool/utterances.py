"""Utterance lists (JSONL, Kaldi directories, TSV and CSV) and the files that command-line arguments mean.

Knows the files' formats and column names; decoding is done by `audio`, whose names are offered here too.
Knows nothing of models or metrics.
"""

from __future__ import annotations

import csv
import glob
import hashlib
import io
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from svtool.audio import SAMPLE_RATE, Audio, PcmFormat, decode_audio, from_array
from svtool.errors import AudioError, SvtoolError, UsageError, counted, shown

__all__ = [
    "AUDIO_SUFFIXES",
    "SAMPLE_RATE",
    "Audio",
    "Input",
    "PcmFormat",
    "Utterance",
    "UtteranceList",
    "decode_audio",
    "expand_inputs",
    "from_array",
    "read_utterances",
]

AUDIO_SUFFIXES = frozenset(
    f".{name}"
    for names in (
        "wav wave w64 aif aiff aifc au snd caf flac g722",
        "mp3 mp2 m4a m4b mp4 mov 3gp aac ogg oga opus webm mka mkv amr wma avi",
    )
    for name in names.split()
)

_WELL_KNOWN = (".wav", ".flac", ".mp3", ".m4a", ".ogg", ".opus")  # named in a message that cannot name all

# our name first; then those of NeMo, FunASR, SenseVoice's own data files and Common Voice
_COLUMNS = {
    "audio": ("audio", "audio_filepath", "source", "path", "wav", "file"),
    "text": ("text", "target", "sentence", "transcript", "transcription"),
    "id": ("id", "key", "utt_id"),
    "language": ("language", "text_language", "lang", "locale"),
    "emotion": ("emotion", "emo_target"),
    "events": ("events", "event", "event_target"),
    "duration": ("duration", "duration_s"),
}
_REGION_LANGUAGES = {"zh-hk": "yue", "cmn": "zh"}  # any other region is dropped: zh-CN is zh
_SHOWN = 3  # names given in a message about many


@dataclass(frozen=True)
class Utterance:
    id: str
    audio: Path
    text: str | None = None
    language: str | None = None
    emotion: str | None = None
    events: tuple[str, ...] = ()
    duration_s: float | None = None
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
        return UtteranceList(self.path, chosen, _digest(chosen, self.path))


def read_utterances(spec: str | Path) -> UtteranceList:
    """Read a JSONL, TSV or CSV list, a Kaldi directory (`wav.scp`, `text`), or `tiny:NAME`.

    Audio paths are relative to the list. Everything wrong with the entries comes in one error.
    """
    path = _list_path(spec)
    entries = list(_kaldi_entries(path) if path.is_dir() else _file_entries(path))
    if not entries:
        raise SvtoolError(f"{path} holds no utterances")
    root = _root(path)
    utterances = tuple(_utterance(entry, place, root) for place, entry in entries)
    _check(utterances, path)
    return UtteranceList(path, utterances, _digest(utterances, path))


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


# ---- entries: (place for messages, {column: value}) of each format


Entry = tuple[str, dict[str, Any]]


def _file_entries(path: Path) -> Iterator[Entry]:
    text = _read_text(path)
    suffix = path.suffix.lower()
    header = text.lstrip()[:1]
    if suffix in (".jsonl", ".json", ".ndjson") or (suffix not in (".tsv", ".csv") and header == "{"):
        return _jsonl_entries(path, text)
    tabs = suffix == ".tsv" or (suffix != ".csv" and "\t" in text.partition("\n")[0])
    return _table_entries(path, text, tabs=tabs)


def _read_text(path: Path) -> str:
    """UTF-8 with or without a byte-order mark, or UTF-16 with one (Excel's "Unicode text")."""
    try:
        data = path.read_bytes()
        return data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise SvtoolError(f"{path}, line {line}: not UTF-8 text; save the list as UTF-8") from error
    except OSError as error:
        raise SvtoolError(f"{path} cannot be read: {error.strerror}") from error


def _lines(text: str) -> Iterator[tuple[int, str]]:
    # not splitlines: it also breaks at characters that belong to texts (U+2028, U+0085 ...)
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line.rstrip("\r")


def _jsonl_entries(path: Path, text: str) -> Iterator[Entry]:
    for number, line in _lines(text):
        place = f"{path}, line {number}"
        try:
            entry = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise SvtoolError(
                f"{place}: not valid JSON ({error}); a list has one object on each line"
            ) from error
        if not isinstance(entry, dict):
            raise SvtoolError(f"{place}: not a JSON object; a list has one object on each line")
        yield place, entry


def _table_entries(path: Path, text: str, *, tabs: bool) -> Iterator[Entry]:
    # quotes in TSV files are plain characters (Common Voice), in CSV they quote
    quoting: Literal[0, 3] = csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL
    reader = csv.reader(io.StringIO(text, newline=""), delimiter="\t" if tabs else ",", quoting=quoting)
    header: list[str] | None = None
    try:
        for cells in reader:
            place = f"{path}, line {reader.line_num}"
            if not any(cells):
                continue
            if header is None:
                header = _header(cells, path)
                continue
            if len(cells) > len(header):
                raise SvtoolError(
                    f"{place}: {counted(len(cells), 'cell')}, but the header names {counted(len(header), 'column')}"
                )
            yield place, dict(zip(header, cells, strict=False))
    except csv.Error as error:
        raise SvtoolError(f"{path}, line {reader.line_num}: {error}") from error


def _header(cells: list[str], path: Path) -> list[str]:
    names = [cell.strip().lower() for cell in cells]
    if not any(name in _COLUMNS["audio"] for name in names):
        raise SvtoolError(
            f"{path}: the first line names no audio column ({', '.join(cells[:8])}); "
            f"a table needs a header with one of {', '.join(_COLUMNS['audio'])}"
        )
    return names


def _kaldi_entries(folder: Path) -> Iterator[Entry]:
    if not (folder / "wav.scp").is_file():
        raise SvtoolError(f"{folder} is no Kaldi directory: it has no wav.scp (for a list, name the file)")
    if (folder / "segments").exists():
        raise SvtoolError(
            f"{folder} has a `segments` file: parts of recordings are not read; cut the audio first"
        )
    recordings = _kaldi_table(folder / "wav.scp")
    piped = [key for key, value in recordings.items() if value.endswith("|") or value.startswith("|")]
    if piped:
        raise SvtoolError(
            f"{folder / 'wav.scp'}: commands are not run, and {_some(piped)} pipe from one; "
            "write the audio to files and name those"
        )
    texts = _kaldi_table(folder / "text", recordings)
    languages = _kaldi_table(folder / "utt2lang", recordings)
    for key, audio in recordings.items():
        entry = {"id": key, "audio": audio}
        if texts:
            entry["text"] = texts[key]
        if key in languages:
            entry["language"] = languages[key]
        yield f"{folder / 'wav.scp'}, {key}", entry


def _kaldi_table(path: Path, recordings: Mapping[str, str] | None = None) -> dict[str, str]:
    """`key value` lines. `recordings`: the keys to match; a file other than wav.scp may be absent."""
    if recordings is not None and not path.is_file():
        return {}
    pairs = [
        (key, "".join(rest).strip())
        for key, *rest in (line.strip().split(maxsplit=1) for _, line in _lines(_read_text(path)))
    ]
    found = dict(pairs)
    problems = []
    if doubled := [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]:
        problems.append(f"{counted(len(doubled), 'duplicate id')} ({_some(doubled)})")
    if recordings is not None:
        if unknown := [key for key in found if key not in recordings]:
            problems.append(f"{counted(len(unknown), 'id')} without audio in wav.scp ({_some(unknown)})")
        if path.name == "text" and (absent := [key for key in recordings if key not in found]):
            problems.append(f"{counted(len(absent), 'id')} of wav.scp without text ({_some(absent)})")
    if problems:
        raise SvtoolError(f"{path}: {'; '.join(problems)}")
    return found


# ---- one entry to one utterance


def _utterance(entry: dict[str, Any], place: str, root: Path) -> Utterance:
    known, extra = _by_our_names(entry)
    written = known.get("audio")
    if not isinstance(written, str) or not written.strip():
        raise SvtoolError(f"{place}: no audio file is named (column {' or '.join(_COLUMNS['audio'])})")
    return Utterance(
        id=written if known.get("id") in (None, "") else str(known["id"]),
        audio=_locate(written, root),
        text=_text(known.get("text"), place),
        language=_language(known.get("language")),
        emotion=_tag(known.get("emotion")),
        events=_events(known.get("events")),
        duration_s=_duration(known.get("duration"), place),
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
    path = root / written
    # Common Voice's tables name files that lie in `clips` beside the table
    in_clips = root / "clips" / written
    return in_clips if not _size(path) and _size(in_clips) else path


def _text(value: Any, place: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise SvtoolError(f"{place}: the text is {json.dumps(value)[:40]}, not a string")
    return value


def _tag(value: Any) -> str | None:
    """`<|NEUTRAL|>` (SenseVoice's data files) or `NEUTRAL` -> `NEUTRAL`; empty -> None."""
    return re.sub(r"^<\|(.*)\|>$", r"\1", str(value or "").strip()) or None


def _language(value: Any) -> str | None:
    tag = _tag(value)
    if tag is None:
        return None
    lower = tag.lower().replace("_", "-")
    return _REGION_LANGUAGES.get(lower, lower.partition("-")[0])


def _events(value: Any) -> tuple[str, ...]:
    parts = value if isinstance(value, list) else re.split(r"[,\s]+", str(value or ""))
    return tuple(tag for tag in map(_tag, parts) if tag)


def _duration(value: Any, place: str) -> float | None:
    if value is None or value == "":
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if isinstance(value, bool) or not 0 <= seconds < math.inf:
        raise SvtoolError(f"{place}: the duration {value!r} is not a number of seconds")
    return seconds


# ---- the list as a whole


def _check(utterances: Sequence[Utterance], path: Path) -> None:
    doubled = [name for name, count in Counter(one.id for one in utterances).items() if count > 1]
    missing = [str(one.audio) for one in utterances if _size(one.audio) is None]
    problems = []
    if doubled:
        problems.append(f"{counted(len(doubled), 'duplicate id')} ({_some(doubled)})")
    if missing:
        problems.append(f"{counted(len(missing), 'audio file')} missing ({_some(missing)})")
    if problems:
        raise SvtoolError(
            f"{path}: {'; '.join(problems)} among {counted(len(utterances), 'utterance')}; "
            f"audio paths are relative to {_root(path)}"
        )


def _some(names: Sequence[str]) -> str:
    first = ", ".join(map(shown, names[:_SHOWN]))
    return first if len(names) <= _SHOWN else f"{first}, ... {len(names) - _SHOWN} more"


def _size(path: Path) -> int | None:
    """Bytes of a file; None when there is none (or the name cannot be one)."""
    try:
        return path.stat().st_size if path.is_file() else None
    except (OSError, ValueError):
        return None


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
