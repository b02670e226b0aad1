"""A private folder for one server's files, gone with the server. Knows nothing of what is stored.

A folder left behind by a killed server is swept when the next one starts: its lock is free then.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "svtool-page-"
_LOCK = "lock"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder `files` that only this user can enter, removed at the end."""
    root = Path(tempfile.gettempdir()).resolve()
    _sweep(root)
    home = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))  # mode 0700
    lock = os.open(home / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _take(lock)
        folder = home / "files"
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        shutil.rmtree(home, ignore_errors=True)
        os.close(lock)


def _sweep(root: Path) -> None:
    for home in root.glob(f"{_PREFIX}*"):
        try:
            if home.is_symlink() or home.stat().st_uid != os.getuid():
                continue
            lock = os.open(home / _LOCK, os.O_RDWR)
        except (OSError, AttributeError):  # not ours, just being made, or a system without user ids
            continue
        try:
            if _take(lock):
                shutil.rmtree(home, ignore_errors=True)
        finally:
            os.close(lock)


def _take(lock: int) -> bool:
    """Whether nobody else holds the lock. It lasts as long as the descriptor, so a killed holder frees it."""
    try:
        import fcntl
    except ImportError:  # Windows: nothing is swept
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
