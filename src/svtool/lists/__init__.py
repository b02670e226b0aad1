"""Formats of utterance lists: which one a file or folder is in, and its entries as columns.

Knows file formats and layouts of corpora. Knows nothing of what columns mean (`utterances`), and reads no audio.
"""

from __future__ import annotations

from pathlib import Path

from svtool.errors import SvtoolError, shown
from svtool.lists import kaldi, tables, trees
from svtool.lists.common import AUDIO_SUFFIXES, Entry, Fault, Listing, fault, some

__all__ = [
    "AUDIO_SUFFIXES",
    "Entry",
    "Fault",
    "Listing",
    "fault",
    "read_listing",
    "some",
]


def read_listing(path: Path, audio: Path | None = None) -> Listing:
    """Entries of the list `path`, with everything found wrong among them.

    `audio`: the folder that audio paths are relative to, and that keys of texts are looked up in (default: the
    list's own). Raises SvtoolError where the whole cannot be read.
    """
    if not path.is_dir():
        return (trees.of_texts if trees.is_texts(path) else tables.read)(path, audio or path.parent)
    if (path / "wav.scp").is_file():
        return kaldi.read(path)
    found = trees.of_folder(path, audio or path)
    if found is None:
        raise SvtoolError(_no_list(path))
    return found


def _no_list(folder: Path) -> str:
    inside = sorted(one.name for one in folder.iterdir() if one.suffix.lower() in tables.SUFFIXES)
    hint = f"; name one of its lists: {some(inside)}" if inside else "; for a list, name the file"
    packed = [one.name for one in folder.rglob("*.tar*")]
    if packed and not inside:
        hint = f"; unpack its archives first ({some(packed)})"
    return (
        f"{shown(str(folder))} is no Kaldi directory and no corpus known here: it has no wav.scp, no .trn, and no "
        f"transcripts of LibriSpeech or AISHELL{hint}"
    )
