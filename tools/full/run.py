"""`make full`: every step at SenseVoice Small's true size, measured, on a random checkpoint. Linux only.

Makes the checkpoint, exports it, runs benchmarks/build.py on it (calibration, plans, search) and loads the exported
directory in funasr-onnx and sherpa-onnx. Writes benchmarks/results/full.json and build.json. Exit code 1 when a step
fails or needs more than its limit. The limits are meant for two quiet cores: on a busy machine CPU time takes the
place of wall time.

    python tools/full/run.py [--work DIR] [--keep]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from svtool.manifest import read_manifest, write_json

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from measure import Measured  # noqa: E402
from steps import Limit, Step, line, report, run, work_folder  # noqa: E402

RESULTS = REPOSITORY / "benchmarks" / "results" / "full.json"
INTEROP = REPOSITORY / "tools" / "interop" / "run.py"
PYTHON = sys.executable
SVTOOL = str(Path(sys.executable).with_name("svtool"))
WHAT = "export at full size (234.0 M parameters) of a random checkpoint; memory is summed over processes"
EXPORT_LIMIT = Limit(wall_s=360, rss_bytes=6 << 30)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, help="folder to work in, 6 GB (default: a temporary one)")
    parser.add_argument("--keep", action="store_true", help="leave the folder for a look")
    options = parser.parse_args()
    with work_folder(options.work, options.keep) as work:
        rows = [run(step, work) for step in steps(work)]
    write_json(RESULTS, report(WHAT, "make full", rows))
    for row in rows:
        print(line(row))
    return 0 if all(row["ok"] for row in rows) else 1


def steps(work: Path) -> list[Step]:
    checkpoint, engine = work / "random-small", work / "engine"
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
        Step(
            "build",
            [PYTHON, str(REPOSITORY / "benchmarks" / "build.py"), str(engine)],
            "python benchmarks/build.py ENGINE",
            lambda done: {"rows": "benchmarks/results/build.json"},
        ),
        Step(
            "interop",
            [PYTHON, str(INTEROP), "--full", str(engine)],
            "python tools/interop/run.py --full ENGINE",
            lambda done: {"rows": "benchmarks/results/interop.json"},
        ),
    ]


def _export_figures(done: Measured, engine: Path) -> dict[str, Any]:
    report, manifest = json.loads(done.stdout), read_manifest(engine / "model.onnx")
    return {key: manifest[key] for key in ("opset", "nodes", "size_bytes", "parity", "simplified")} | {
        "seconds": report["seconds"]
    }


if __name__ == "__main__":
    raise SystemExit(main())
