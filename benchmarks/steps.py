"""Commands as measured steps: wall and CPU time, memory, limits, and rows with the machine beside them. Linux only."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from measure import Measured, measure
from svtool.manifest import versions

BUSY_CORES = 0.2  # kept busy by other processes: the times then say little
_LIBRARIES = ("torch", "onnx", "onnx-ir", "onnxscript", "onnxsim", "onnxruntime-gpu", "onnxruntime", "numpy")


@dataclass(frozen=True)
class Limit:
    wall_s: float
    rss_bytes: int


@dataclass(frozen=True)
class Step:
    name: str
    command: list[str]
    shown: str  # the command without this machine's folders
    figures: Callable[[Measured], dict[str, Any]]
    limit: Limit | None = None


@contextmanager
def work_folder(named: Path | None, keep: bool) -> Iterator[Path]:
    if named is not None:
        named.mkdir(parents=True)  # a folder that exists may hold something: refuse to delete it later
    work = named or Path(tempfile.mkdtemp(prefix="svtool-bench-"))
    try:
        yield work
    finally:
        if keep:
            print(f"kept {work}", file=sys.stderr)
        else:
            shutil.rmtree(work, ignore_errors=True)


def run(step: Step, work: Path) -> dict[str, Any]:
    print(f"{step.name}: {step.shown}", file=sys.stderr)
    log = work / f"{step.name}.log"
    done = measure(step.command, log=log)
    row: dict[str, Any] = {
        "step": step.name,
        "command": step.shown,
        "ok": done.exit_code == 0,
        "exit_code": done.exit_code,
        "wall_s": done.wall_s,
        "cpu_s": done.cpu_s,
        "peak_rss_bytes": done.peak_rss_bytes,
        "other_processes_cores": done.others_cores,
        "machine_busy": done.others_cores > BUSY_CORES,
    }
    if done.exit_code != 0:
        return row | {"stderr": log.read_text(errors="replace").splitlines()[-15:]}
    if step.limit is not None:
        row["limit"] = {"wall_s": step.limit.wall_s, "peak_rss_bytes": step.limit.rss_bytes}
        row["ok"] = _within(done, step.limit)
    return row | {"figures": step.figures(done)}


def _within(done: Measured, limit: Limit) -> bool:
    # on a busy machine the wall time says how busy it was; alone, a step needs no longer than its CPU time
    seconds = min(done.wall_s, done.cpu_s) if done.others_cores > BUSY_CORES else done.wall_s
    return seconds <= limit.wall_s and done.peak_rss_bytes <= limit.rss_bytes


def report(what: str, command: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "what": what,
        "command": command,
        "measured": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {
            "platform": platform.platform(),
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        },
        "versions": versions(*_LIBRARIES, "tensorrt-rtx-cu12"),
        "rows": rows,
    }


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def line(row: dict[str, Any]) -> str:
    state = "ok  " if row["ok"] else "FAIL"
    busy = f"  (others kept {row['other_processes_cores']} cores busy)" if row["machine_busy"] else ""
    memory = row["peak_rss_bytes"] / 2**30
    return f"{state} {row['step']:10} {row['wall_s']:7.1f} s {memory:6.2f} GiB  {row['command']}{busy}"
