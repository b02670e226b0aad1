"""A module that only svtool's child processes find, so that a test can say what happens in one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest


def add(source: str, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str = "probe") -> None:
    """Make `source` the module `svtool.<name>` of every child started from now on."""
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    # a second folder on the package's path, set up when the child's interpreter starts
    (folder / "sitecustomize.py").write_text(f"import svtool\nsvtool.__path__.append({str(folder)!r})\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, sys.path)]))
