"""What calibration, passes, search and TensorRT-RTX plans cost on this CPU: time, memory and sizes, as a table.

Works on any exported folder; the limits are for SenseVoice Small's true size on two quiet cores (`make full` makes a
random checkpoint of it). Speech is rendered from the embedded recordings, 8 utterances of 10 s; with random weights its
texts mean nothing, so the search step measures what a search costs, not what it finds. Writes
benchmarks/results/build.json. Exit code 1 when a step fails or needs more than its limit. Linux only.

    python benchmarks/build.py ENGINE [--work DIR] [--keep]
"""

from __future__ import annotations

import argparse
import json
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np

from measure import Measured
from steps import Limit, Step, line, report, run, work_folder
from svtool.manifest import write_json
from svtool.tiny import render

RESULTS = Path(__file__).resolve().parent / "results" / "build.json"
SVTOOL = str(Path(sys.executable).with_name("svtool"))
PROFILE = "8:30"
UTTERANCES, SECONDS = 8, 10
GIB = 1 << 30
FULL_SIZE_BYTES = 900_000_000  # of model.onnx: smaller models are held to no limit
PLAN_LIMIT = Limit(wall_s=90, rss_bytes=4 * GIB)  # of the builder's process alone
PASSES_LIMIT_S = 90  # each of fp16 and int8: 3 minutes together
INT8_PLAN_BYTES = 310_000_000


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engine", type=Path, help="folder written by svtool export")
    parser.add_argument("--work", type=Path, help="folder to work in, 3 GB (default: a temporary one)")
    parser.add_argument("--keep", action="store_true", help="leave the folder for a look")
    options = parser.parse_args()
    full = (options.engine / "model.onnx").stat().st_size >= FULL_SIZE_BYTES
    with work_folder(options.work, options.keep) as work:
        rows = [run(step, work) for step in steps(options.engine, work)]
    for row in rows:
        if full and row["exit_code"] in (0, 3):
            row["over"] = over_limits(row)
            row["ok"] = row["ok"] and not row["over"]
    what = f"calibration, passes, plans and search of {options.engine.name} with TensorRT-RTX on a CPU"
    write_json(RESULTS, report(what, "python benchmarks/build.py ENGINE", rows))
    for row in rows:
        print(line(row) + details(row))
    return 0 if all(row["ok"] for row in rows) else 1


def steps(engine: Path, work: Path) -> list[Step]:
    spoken, cache = work / "speech" / "list.jsonl", work / "ranges.json"
    write_speech(spoken)
    build = [SVTOOL, "build-trt", str(engine), "--flavor", "rtx", "--json"]
    one = ["--profile", PROFILE]

    def plan(name: str, *arguments: str) -> Step:
        shown = " ".join(arguments).replace(str(cache), "CACHE").replace(str(spoken), "LIST")
        output = ["-o", str(work / f"{name}.plan")]
        return Step(name, [*build, *arguments, *output], f"svtool build-trt ENGINE {shown}", plan_figures)

    return [
        Step(
            "calibrate",
            [SVTOOL, "calibrate", str(engine), "--data", str(spoken), "-o", str(cache), "--json"],
            "svtool calibrate ENGINE --data LIST -o CACHE",
            calibration_figures,
        ),
        plan("fp16", "--fp16", "--calibration", str(cache), *one),
        plan("int8", "--int8", "--calibration", str(cache), *one),
        plan("int8-weights", "--int8", "--weight-only", "--calibration", str(cache), *one),
        plan("int8-default", "--int8", "--calibration", str(cache)),
        plan(
            "search",
            *("--int8", "--calibration", str(cache), "--drift-budget", "50", "--drift-data", str(spoken)),
            *one,
        ),
    ]


def write_speech(path: Path) -> None:
    """Rendered utterances joined until each lasts about SECONDS."""
    source = render("calibration")
    entries = [json.loads(text) for text in source.read_text(encoding="utf-8").splitlines()]
    path.parent.mkdir(parents=True)
    lines, at = [], 0
    for number in range(UTTERANCES):
        parts: list[np.ndarray[Any, Any]] = []
        texts = []
        while sum(map(len, parts)) < SECONDS * 16000:
            with wave.open(str(source.parent / entries[at]["audio"])) as audio:
                parts.append(np.frombuffer(audio.readframes(audio.getnframes()), dtype="<i2"))
            texts.append(entries[at]["text"])
            at += 1
        with wave.open(str(path.parent / f"{number}.wav"), "wb") as out:
            out.setparams((1, 2, 16000, 0, "NONE", ""))
            out.writeframes(np.concatenate(parts)[: SECONDS * 16000].tobytes())
        lines.append(json.dumps({"audio": f"{number}.wav", "text": " ".join(texts), "language": "en"}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def calibration_figures(done: Measured) -> dict[str, Any]:
    made = json.loads(done.stdout)
    return {key: made[key] for key in ("used", "sqnr", "seconds") if key in made}


def plan_figures(done: Measured) -> dict[str, Any]:
    built = json.loads(done.stdout)
    kept = ("library", "library_version", "profiles", "plan_bytes", "twin_bytes", "quantized_layers")
    measured = ("int8_share", "parity", "seconds", "peak_rss_bytes", "verdict", "warnings")
    return {key: built[key] for key in (*kept, *measured)}


def over_limits(row: dict[str, Any]) -> list[str]:
    """In words. On a busy machine times say how busy it was, so they are held to nothing there."""
    figures = row.get("figures", {})
    found = []
    if row["step"] == "calibrate" and row["peak_rss_bytes"] > 4 * GIB:
        found.append("calibration above 4 GiB")
    if row["step"] in ("fp16", "int8", "int8-weights"):
        if figures["peak_rss_bytes"]["plan"] > PLAN_LIMIT.rss_bytes:
            found.append("builder above 4 GiB")
        if not row["machine_busy"] and figures["seconds"]["plan"] > PLAN_LIMIT.wall_s:
            found.append(f"builder above {PLAN_LIMIT.wall_s:g} s")
        if not row["machine_busy"] and figures["seconds"]["graph"] > PASSES_LIMIT_S:
            found.append(f"passes above {PASSES_LIMIT_S} s")
    if row["step"] == "int8" and figures["plan_bytes"] > INT8_PLAN_BYTES:
        found.append("plan above 310 MB")
    return found


def details(row: dict[str, Any]) -> str:
    figures = row.get("figures", {})
    if "plan_bytes" not in figures:
        return ""
    seconds = figures["seconds"]
    return (
        f"  [passes and check {seconds['graph']:.0f} s, plan {seconds['plan']:.0f} s, "
        f"{figures['plan_bytes'] / 1e6:.0f} MB]" + "".join(f" OVER: {fault}" for fault in row.get("over", ()))
    )


if __name__ == "__main__":
    raise SystemExit(main())
