"""Folders for work in progress: gone with the work, and after a kill gone with the next work of that kind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from svtool.staging import clear_abandoned, staging

HOLD = """
import sys, time
from pathlib import Path
from svtool.staging import staging
with staging(Path(sys.argv[1]), "export-x") as work:
    (work / "half").write_text("done")
    print(work, flush=True)
    time.sleep(600)
"""


def holder(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    return child, Path(child.stdout.readline().strip())


def end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate(timeout=30)


def test_the_folder_goes_with_the_work_however_it_ends(tmp_path: Path) -> None:
    with staging(tmp_path / "made", "export") as work:
        (work / "file").touch()
    interrupted = staging(tmp_path / "made", "export")
    (interrupted.__enter__() / "file").touch()
    assert interrupted.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None) is False
    assert list((tmp_path / "made").iterdir()) == []


def test_only_what_a_dead_process_left_is_removed(tmp_path: Path) -> None:
    others = [tmp_path / ".svtool-build-abc", tmp_path / ".cache", tmp_path / "svtool-export-x-1"]
    for other in others:
        other.mkdir()
    (tmp_path / ".svtool-export-x-file").touch()
    (tmp_path / ".svtool-export-x-link").symlink_to(others[1])
    kept = {path.name for path in tmp_path.iterdir()}
    child, left = holder(tmp_path)
    try:
        with staging(tmp_path, "export-x") as work:
            assert {path.name for path in tmp_path.iterdir()} == kept | {left.name, work.name}
            assert (left / "half").is_file()
    finally:
        end(child)
    assert left.is_dir()
    clear_abandoned(tmp_path, "export-x")
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_name_with_pattern_characters_is_taken_literally(tmp_path: Path) -> None:
    (tmp_path / ".svtool-export-a1-x").mkdir()
    with staging(tmp_path, "export-[ab]1") as work:
        assert work.name.startswith(".svtool-export-[ab]1-")
        assert (tmp_path / ".svtool-export-a1-x").is_dir()
