"""Corpora kept as texts with keys beside audio files named by them: LibriSpeech, MLS, AISHELL, SCTK `.trn`.

Knows how such texts are written and where corpora put their audio. Knows nothing of other lists.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from svtool.errors import counted
from svtool.lists.common import (
    AUDIO_SUFFIXES,
    Entry,
    Fault,
    Listing,
    fault,
    files_under,
    lines,
    read_text,
    some,
)
from svtool.lists.tables import malformed_fault

_AISHELL = re.compile(r"aishell.*transcript.*\.txt$", re.IGNORECASE)
_TRN_LINE = re.compile(r"^(.*?)\s*\(([^()\s]+)\)\s*$", re.DOTALL)
_TRN_ALTERNATIVES = re.compile(r"\{[^{}]*/[^{}]*\}")
_LIBRISPEECH_ID = re.compile(r"\d+-\d+-\d+")
_UP = 3  # AISHELL: data_aishell/wav/test/S0764 is three levels below the folder of `transcript`


def is_texts(path: Path) -> bool:
    """A file of keys and texts that names no audio."""
    return _form(path) is not None


def _form(path: Path) -> str | None:
    name = path.name
    if name.lower().endswith(".trn"):
        return "SCTK .trn"
    if _AISHELL.match(name):
        return "AISHELL"
    if name.endswith(".trans.txt"):
        return "LibriSpeech"
    if name == "transcripts.txt":
        return "MLS"
    return "Kaldi text" if name == "text" else None


@dataclass
class _Texts:
    """Texts by key from one or more files."""

    by_key: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    keys: Counter[str] = field(default_factory=Counter)
    malformed: list[str] = field(default_factory=list)
    alternatives: list[str] = field(default_factory=list)

    def add(self, key: str, text: str, place: str) -> None:
        self.keys[key] += 1
        self.by_key.setdefault(key, text)
        self.places.setdefault(key, place)

    def faults(self) -> Iterator[Fault]:
        doubled = [key for key, count in self.keys.items() if count > 1]
        yield from fault("duplicate_id", "duplicate id", doubled)
        yield from malformed_fault(self.malformed)
        tail = "with alternatives { a / b }, which no rate here counts: keep one of them"
        yield from fault("alternatives", "text", self.alternatives, tail)


def _read_trn(path: Path, into: _Texts) -> None:
    """SCTK's `words (id)` lines; those that begin with `;;` are comments."""
    for number, line in lines(read_text(path)):
        if line.lstrip().startswith(";;"):
            continue
        place = f"{path}, line {number}"
        found = _TRN_LINE.match(line)
        if found is None:
            into.malformed.append(f"{place}: no (id) at its end")
            continue
        text, key = found[1].strip(), found[2]
        if _TRN_ALTERNATIVES.search(text):
            into.alternatives.append(key)
        else:
            into.add(key, text, place)


def _read_keyed(path: Path, into: _Texts) -> None:
    for number, line in lines(read_text(path)):
        key, *rest = line.strip().split(maxsplit=1)
        into.add(key, "".join(rest).strip(), f"{path}, line {number}")


def _read(paths: Iterable[Path]) -> _Texts:
    texts = _Texts()
    for path in paths:
        reader: Callable[[Path, _Texts], None] = _read_trn if path.suffix.lower() == ".trn" else _read_keyed
        reader(path, texts)
    return texts


# ---- a list that is one file of texts, and one that is a folder


def of_texts(path: Path, audio: Path) -> Listing:
    """The file says what belongs to the list; audio that it does not name is none of it."""
    form = _form(path) or path.name
    texts, files = _read([path]), _Audio(audio)
    entries, faults = _joined(texts, files, form, f"under {audio}")
    others = len(files.by_stem) - len(entries)
    notes = (
        (f"{counted(others, 'audio file')} under {audio} without a text in {path.name}",)
        if others > 0
        else ()
    )
    return Listing(form, tuple(entries), tuple(faults), notes)


def of_folder(folder: Path, audio: Path) -> Listing | None:
    """The folder says what belongs to the list: audio without text is a fault. None where nothing is known."""
    inside = [path for path in files_under(folder) if path.name != "text" and is_texts(path)]
    texts_at = inside or _above(folder)
    if not texts_at:
        return None
    form = _form(texts_at[0]) or ""
    texts, files = _read(texts_at), _Audio(audio)
    notes = []
    if not inside:
        # AISHELL keeps the texts of all its parts in one file: those of other parts are none of this list
        others = [key for key in texts.by_key if files.find(key) is None]
        for key in others:
            del texts.by_key[key]
        if others:
            notes.append(f"{counted(len(others), 'text')} of {texts_at[0].name} belong to other folders")
    entries, faults = _joined(texts, files, form, f"under {audio}")
    named = {str(Path(key).stem) for key in (*texts.keys, *texts.alternatives)} | set(texts.keys)
    silent = [str(one) for stem, paths in files.by_stem.items() if stem not in named for one in paths]
    faults += fault("audio_without_text", "audio file", silent, "without text")
    return Listing(
        f"{form} tree" if form != "SCTK .trn" else form, tuple(entries), tuple(faults), tuple(notes)
    )


def _above(folder: Path) -> list[Path]:
    for parent in list(folder.absolute().parents)[:_UP]:
        if found := sorted(one for one in (parent / "transcript").glob("*.txt") if _AISHELL.match(one.name)):
            return found
    return []


class _Audio:
    """Audio files of a folder by the name before their suffix."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.by_stem: dict[str, list[Path]] = defaultdict(list)
        for path in files_under(folder):
            if path.suffix.lower() in AUDIO_SUFFIXES:
                self.by_stem[path.stem].append(path)

    def find(self, key: str) -> list[Path] | None:
        """`key` is a file's stem, or its whole name."""
        name = Path(key)
        return self.by_stem.get(key) or (
            self.by_stem.get(name.stem) if name.suffix.lower() in AUDIO_SUFFIXES else None
        )


def _joined(texts: _Texts, files: _Audio, form: str, where: str) -> tuple[list[Entry], list[Fault]]:
    entries: list[Entry] = []
    lost: list[str] = []
    several: list[str] = []
    for key, text in texts.by_key.items():
        found = files.find(key)
        if found is None:
            lost.append(key)
            continue
        if len(found) > 1:
            several.append(f"{key}: {some([str(one) for one in found])}")
            continue
        entries.append((texts.places[key], _entry(found[0], files.folder, text, form)))
    faults = [
        *texts.faults(),
        *fault("text_without_audio", "text", lost, f"without an audio file of its id {where}"),
        *fault("several_audio", "id", several, "with several audio files"),
    ]
    return entries, faults


def _entry(audio: Path, root: Path, text: str, form: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"id": audio.stem, "audio": str(audio.relative_to(root)), "text": text}
    parents: Sequence[Path] = audio.absolute().parents
    if form == "AISHELL":
        entry |= {"language": "zh", "speaker": parents[0].name, "subset": parents[1].name}
    elif _LIBRISPEECH_ID.fullmatch(audio.stem) and len(parents) > 2:
        entry |= {"language": "en", "speaker": parents[1].name, "subset": parents[2].name}
    return entry
