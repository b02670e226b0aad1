"""Runs a command and says how long it took and how much memory it and its children held at once. Linux only."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SAMPLE_S = 0.25
_PAGE_BYTES = resource.getpagesize()
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Measured:
    exit_code: int
    stdout: str
    wall_s: float
    cpu_s: float
    peak_rss_bytes: int  # summed over the process tree, sampled; pages shared by two of them count twice
    others_cores: float  # cores that everything else on the machine kept busy meanwhile


def measure(command: Sequence[str], *, log: Path) -> Measured:
    """Run `command`; its stderr goes to `log`."""
    before, busy, began = resource.getrusage(resource.RUSAGE_CHILDREN), _busy_s(), time.monotonic()
    with log.open("wb") as errors:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        watch = _Watch(child.pid)
        try:
            stdout, _ = child.communicate()
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
            peak = watch.stop()
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    others = max(0.0, (_busy_s() - busy - cpu) / wall)
    return Measured(child.returncode, stdout, round(wall, 1), round(cpu, 1), peak, round(others, 2))


class _Watch:
    """Samples the resident memory of a process and its descendants."""

    def __init__(self, pid: int) -> None:
        self._pid, self._peak, self._done = pid, 0, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        self._done.set()
        self._thread.join()
        return self._peak

    def _run(self) -> None:
        while not self._done.wait(_SAMPLE_S):
            self._peak = max(self._peak, sum(_rss_bytes(pid) for pid in _tree(self._pid)))


def _tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # the name in parentheses may hold spaces
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue  # ended meanwhile
        children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def _rss_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def _busy_s() -> float:
    """CPU seconds that all cores together have been busy since the start of the machine."""
    fields = [int(one) for one in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle, waiting = fields[3], fields[4]
    return (sum(fields) - idle - waiting) / _TICKS_PER_S


if __name__ == "__main__":
    result = measure(sys.argv[1:], log=Path(os.devnull))
    print(result.stdout)
    print(
        f"{result.wall_s} s, {result.cpu_s} s CPU, {result.peak_rss_bytes / 2**30:.2f} GiB", file=sys.stderr
    )
