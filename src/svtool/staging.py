"""A hidden folder for work in progress beside what it will replace, removed however the work ends.

A killed process cannot remove its folder; the next one of the same purpose does. A lock, which the system drops
with the process, tells a folder at work from one left behind. Knows nothing of what is put inside.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = ".svtool-"


@contextmanager
def staging(parent: Path, purpose: str) -> Iterator[Path]:
    """Yield a new folder in `parent` named `.svtool-<purpose>-...`; clears what killed ones of that name left."""
    parent.mkdir(parents=True, exist_ok=True)
    clear_abandoned(parent, purpose)
    work, lock = _locked_folder(parent, f"{_PREFIX}{purpose}-")
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def clear_abandoned(parent: Path, purpose: str) -> None:
    """Remove the folders of this purpose whose process is gone. Where nothing can be locked, nothing is removed."""
    for folder in parent.glob(f"{_PREFIX}{glob.escape(purpose)}-*"):
        if folder.is_symlink() or not folder.is_dir():
            continue
        lock = _lock(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _locked_folder(parent: Path, prefix: str) -> tuple[Path, int | None]:
    for _ in range(3):
        work = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = _lock(work)
        # between the two calls another process may have taken it for one left behind
        if lock is not None and work.is_dir():
            return work, lock
        shutil.rmtree(work, ignore_errors=True)
        if lock is not None:
            os.close(lock)
    # no locks on this file system: nobody can take it, and nobody will clear it up
    return Path(tempfile.mkdtemp(prefix=prefix, dir=parent)), None


def _lock(folder: Path) -> int | None:
    """The open folder, locked for this process; None when another holds it or the file system has no locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    with contextlib.suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(opened)
            raise
        return opened
    return None
