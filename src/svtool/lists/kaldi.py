"""Kaldi directories: `wav.scp`, `text` (AISHELL-2: `trans.txt`), `utt2lang`, `utt2spk` and `segments`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from svtool.errors import shown
from svtool.lists.common import Entry, Fault, Listing, fault, lines, read_text
from svtool.lists.tables import malformed_fault

_OPTIONAL = {"utt2lang": "language", "utt2spk": "speaker"}


def read_table(path: Path) -> tuple[dict[str, str], tuple[Fault, ...]]:
    """`key value` lines; of a key that comes twice the first value, and a fault."""
    found: dict[str, str] = {}
    keys: Counter[str] = Counter()
    for _, line in lines(read_text(path)):
        key, *rest = line.strip().split(maxsplit=1)
        keys[key] += 1
        found.setdefault(key, "".join(rest).strip())
    doubled = [key for key, count in keys.items() if count > 1]
    return found, tuple(fault("duplicate_id", "duplicate id", doubled, f"in {path.name}"))


def read(folder: Path) -> Listing:
    recordings, found = read_table(folder / "wav.scp")
    faults = [*found, *_commands(recordings)]
    segments = folder / "segments"
    entries = (
        _of_segments(segments, recordings, faults)
        if segments.exists()
        else {key: (f"{folder / 'wav.scp'}, {key}", {"audio": audio}) for key, audio in recordings.items()}
    )
    _add_texts(folder, entries, faults, "segments" if segments.exists() else "wav.scp")
    named = tuple((place, {"id": key, **entry}) for key, (place, entry) in entries.items())
    return Listing("Kaldi directory", named, tuple(faults))


def _commands(recordings: Mapping[str, str]) -> Iterator[Fault]:
    piped = [key for key, value in recordings.items() if value.endswith("|") or value.startswith("|")]
    tail = "of wav.scp with a command in place of a file: commands are not run, write the audio to files"
    return fault("command", "id", piped, tail)


def _of_segments(path: Path, recordings: Mapping[str, str], faults: list[Fault]) -> dict[str, Entry]:
    """Entries with `part`: seconds from and to; an end below zero is the recording's."""
    table, found = read_table(path)
    faults += found
    entries: dict[str, Entry] = {}
    malformed, lost = [], []
    for key, value in table.items():
        recording, *times = value.split()
        part = _part(times)
        if part is None:
            malformed.append(f"{path}, {key}: {shown(value)!r} is not  recording start end  in seconds")
        elif recording not in recordings:
            lost.append(f"{key} of {recording}")
        else:
            entries[key] = (f"{path}, {key}", {"audio": recordings[recording], "part": part})
    faults += malformed_fault(malformed)
    faults += fault("text_without_audio", "segment", lost, "of recordings that wav.scp lacks")
    cut_up = {value.split()[0] for value in table.values() if value}
    unused = [key for key in recordings if key not in cut_up]
    faults += fault("audio_without_text", "recording", unused, "of wav.scp without a segment")
    return entries


def _part(times: list[str]) -> tuple[float, float | None] | None:
    try:
        start, end = map(float, times)
    except ValueError:
        return None
    if end < 0:
        return start, None
    return (start, end) if 0 <= start < end < float("inf") else None


def _add_texts(folder: Path, entries: Mapping[str, Entry], faults: list[Fault], of: str) -> None:
    name = next((name for name in ("text", "trans.txt") if (folder / name).is_file()), None)
    if name is not None:
        texts = _matched(folder / name, entries, faults, of)
        if texts:
            absent = [key for key in entries if key not in texts]
            faults += fault("audio_without_text", "id", absent, f"of {of} without text")
        _add(entries, "text", texts)
    for optional, column in _OPTIONAL.items():
        if (folder / optional).is_file():
            _add(entries, column, _matched(folder / optional, entries, faults, of))


def _matched(path: Path, keys: Iterable[str], faults: list[Fault], of: str) -> dict[str, str]:
    table, found = read_table(path)
    faults += found
    known = set(keys)
    unknown = [key for key in table if key not in known]
    faults += fault("text_without_audio", "id", unknown, f"of {path.name} without audio in {of}")
    return table


def _add(entries: Mapping[str, Entry], column: str, values: Mapping[str, str]) -> None:
    for key, (_, entry) in entries.items():
        if key in values:
            entry[column] = values[key]
