"""What the readers of list formats share: entries, faults with their counts, and text files as people save them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from svtool.errors import SvtoolError, counted, shown

AUDIO_SUFFIXES = frozenset(
    f".{name}"
    for names in (
        "wav wave w64 aif aiff aifc au snd caf flac g722",
        "mp3 mp2 m4a m4b mp4 mov 3gp aac ogg oga opus webm mka mkv amr wma avi",
    )
    for name in names.split()
)
SHOWN = 3  # names given in a message about many

Entry = tuple[str, dict[str, Any]]  # place for messages, {column: value}


@dataclass(frozen=True)
class Fault:
    """One thing wrong with a list, and every id, file or line it is wrong with."""

    kind: str  # a stable word for scripts
    words: str  # with the count, e.g. "2 duplicate ids"
    names: tuple[str, ...]
    ids: tuple[str, ...] = ()  # of the utterances it is about, where names are more than ids

    def __str__(self) -> str:
        return f"{self.words} ({some(self.names)})"


@dataclass(frozen=True)
class Listing:
    """What a list holds. `faults` make it unfit for use as it is, `notes` are worth knowing."""

    format: str
    entries: tuple[Entry, ...]
    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()


def fault(
    kind: str, noun: str, names: Sequence[str], tail: str = "", ids: Sequence[str] = ()
) -> Iterator[Fault]:
    """One fault over all `names`, none when there are none: `yield from fault(...)`."""
    if names:
        words = f"{counted(len(names), noun)} {tail}".rstrip()
        yield Fault(kind, words, tuple(names), tuple(ids))


def some(names: Sequence[str]) -> str:
    first = ", ".join(map(shown, names[:SHOWN]))
    return first if len(names) <= SHOWN else f"{first}, ... {len(names) - SHOWN} more"


def read_text(path: Path) -> str:
    """UTF-8 with or without a byte-order mark, or UTF-16 with one (Excel's "Unicode text")."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise SvtoolError(f"{path}, line {line}: not UTF-8 text; save the list as UTF-8") from error
    except OSError as error:
        raise SvtoolError(f"{path} cannot be read: {error.strerror}") from error
    return text if "\n" in text else text.replace("\r", "\n")


def lines(text: str) -> Iterator[tuple[int, str]]:
    # not splitlines: it also breaks at characters that belong to texts (U+2028, U+0085 ...)
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line.rstrip("\r")


def files_under(folder: Path) -> Iterator[Path]:
    """Every file, in a fixed order; hidden names (macOS leaves `._a.wav` beside `a.wav`) are left out."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in sorted(names) if not name.startswith("."))
