"""`make full`: every step at SenseVoice Small's true size, measured, on a random checkpoint. Linux only.

Makes the checkpoint, exports it, builds an fp16 and an int8 plan with TensorRT-RTX and loads the exported directory in
funasr-onnx and sherpa-onnx. Writes benchmarks/results/full.json. Exit code 1 when a step fails or needs more than
its limit. The limits are meant for two quiet cores: on a busy machine CPU time takes the place of wall time.

    python tools/full/run.py [--work DIR] [--keep]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from measure import Measured, measure

from svtool.manifest import read_manifest, versions, write_json
from svtool.tiny import render

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results" / "full.json"
INTEROP = REPOSITORY / "tools" / "interop" / "run.py"
PYTHON = sys.executable
SVTOOL = str(Path(sys.executable).with_name("svtool"))
PROFILE = "8:30"
CALIBRATION_UTTERANCES = 8
BUSY_CORES = 0.2  # kept busy by other processes: the times then say little
_LIBRARIES = ("torch", "onnx", "onnx-ir", "onnxscript", "onnxsim", "onnxruntime-gpu", "onnxruntime", "numpy")


@dataclass(frozen=True)
class Limit:
    wall_s: float
    rss_bytes: int


EXPORT_LIMIT = Limit(wall_s=360, rss_bytes=6 << 30)


@dataclass(frozen=True)
class Step:
    name: str
    command: list[str]
    shown: str  # the command without this machine's folders
    figures: Callable[[Measured], dict[str, Any]]
    limit: Limit | None = None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, help="folder to work in, 6 GB (default: a temporary one)")
    parser.add_argument("--keep", action="store_true", help="leave the folder for a look")
    options = parser.parse_args()
    with _work_folder(options.work, options.keep) as work:
        rows = [_run(step, work) for step in steps(work)]
    write_json(RESULTS, report(rows))
    for row in rows:
        print(_line(row))
    return 0 if all(row["ok"] for row in rows) else 1


@contextmanager
def _work_folder(named: Path | None, keep: bool) -> Iterator[Path]:
    if named is not None:
        named.mkdir(parents=True)  # a folder that exists may hold something: refuse to delete it later
    work = named or Path(tempfile.mkdtemp(prefix="svtool-full-"))
    try:
        yield work
    finally:
        if keep:
            print(f"kept {work}", file=sys.stderr)
        else:
            shutil.rmtree(work, ignore_errors=True)


def steps(work: Path) -> list[Step]:
    checkpoint, engine = work / "random-small", work / "engine"
    utterances = work / "calibration" / "list.jsonl"
    write_calibration(utterances)
    build = [SVTOOL, "build-trt", str(engine), "--flavor", "rtx", "--profile", PROFILE, "--json"]
    shown = f"svtool build-trt ENGINE --flavor rtx --profile {PROFILE}"
    return [
        Step(
            "checkpoint",
            [PYTHON, str(HERE / "make_checkpoint.py"), str(checkpoint)],
            "python tools/full/make_checkpoint.py CHECKPOINT",
            lambda done: {"model_pt_bytes": (checkpoint / "model.pt").stat().st_size},
        ),
        Step(
            "export",
            [SVTOOL, "export", str(checkpoint), "-o", str(engine), "--json"],
            "svtool export CHECKPOINT -o ENGINE",
            lambda done: _export_figures(done, engine),
            EXPORT_LIMIT,
        ),
        Step("fp16", [*build, "--fp16"], f"{shown} --fp16", _build_figures),
        Step(
            "int8",
            [*build, "--int8", "--data", str(utterances)],
            f"{shown} --int8 --data LIST",
            _build_figures,
        ),
        Step(
            "interop",
            [PYTHON, str(INTEROP), "--full", str(engine)],
            "python tools/interop/run.py --full ENGINE",
            lambda done: {"rows": "benchmarks/results/interop.json"},
        ),
    ]


def write_calibration(path: Path) -> None:
    """A list of long utterances: rendered ones joined until each lasts about 15 s."""
    source = render("calibration")
    entries = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    path.parent.mkdir(parents=True)
    lines, at = [], 0
    for number in range(CALIBRATION_UTTERANCES):
        parts: list[np.ndarray[Any, Any]] = []
        while sum(map(len, parts)) < 15 * 16000:
            with wave.open(str(source.parent / entries[at]["audio"])) as audio:
                parts.append(np.frombuffer(audio.readframes(audio.getnframes()), dtype="<i2"))
            at += 1
        name = f"{number}.wav"
        with wave.open(str(path.parent / name), "wb") as out:
            out.setparams((1, 2, 16000, 0, "NONE", ""))
            out.writeframes(np.concatenate(parts).tobytes())
        lines.append(json.dumps({"audio": name, "language": "en"}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _run(step: Step, work: Path) -> dict[str, Any]:
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


def _export_figures(done: Measured, engine: Path) -> dict[str, Any]:
    report, manifest = json.loads(done.stdout), read_manifest(engine / "model.onnx")
    return {key: manifest[key] for key in ("opset", "nodes", "size_bytes", "parity", "simplified")} | {
        "seconds": report["seconds"]
    }


def _build_figures(done: Measured) -> dict[str, Any]:
    report = json.loads(done.stdout)
    kept = ("library", "library_version", "profiles", "plan_bytes", "twin_bytes", "quantized_layers")
    measured = ("parity", "seconds", "peak_rss_bytes", "warnings")
    return {key: report[key] for key in (*kept, *measured)}


def report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "what": "every step at full size (234.0 M parameters) on a random checkpoint; memory is summed over processes",
        "command": "make full",
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


def _line(row: dict[str, Any]) -> str:
    state = "ok  " if row["ok"] else "FAIL"
    busy = f"  (others kept {row['other_processes_cores']} cores busy)" if row["machine_busy"] else ""
    memory = row["peak_rss_bytes"] / 2**30
    return f"{state} {row['step']:10} {row['wall_s']:7.1f} s {memory:6.2f} GiB  {row['command']}{busy}"


if __name__ == "__main__":
    raise SystemExit(main())
