"""A comparison of 100,000 utterances: how much memory it takes, and that a killed run ends as one that was not.

    python benchmarks/scale.py [--utterances 100000]

Both sides are doubles that say the reference with some words wrong, so all that is measured is svtool's own: keeping
answers in a results file, reading them again, scoring, bootstrap intervals, report. A first process runs through; a
second one is killed with SIGKILL in the middle of its second side and run again. Writes benchmarks/results/scale.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "scale.json"
WORDS = [f"word{number}" for number in range(500)]


def measured(number: int, path: Path) -> dict[str, Any]:
    from svtool.utterances import Utterance
    from svtool.wer.gate import Answer, GateOptions, Side, validate
    from svtool.wer.report import to_json

    generator = random.Random(0)
    utterances = [
        Utterance(
            f"u{index}",
            Path(f"/corpus/part{index % 100}/u{index}.wav"),
            " ".join(generator.choices(WORDS, k=generator.randint(5, 40))),
            "en",
            duration_s=round(generator.uniform(1, 20), 2),
            extra={"snr": str(index % 37)},
        )
        for index in range(number)
    ]

    def side(name: str, wrong: float) -> Side:
        def transcribe(asked: Sequence[Utterance]) -> Iterator[tuple[int, Answer]]:
            for index, one in enumerate(asked):
                chance = random.Random(name + one.id).random
                text = " ".join(word if chance() > wrong else "x" for word in (one.text or "").split())
                yield index, Answer(text, "en", "NEUTRAL", ("Speech",), itn=False)

        return Side(name, transcribe, digest=hashlib.sha256(name.encode()).hexdigest())

    listed_mb = _peak_mb()
    started = time.monotonic()
    options = GateOptions(columns=("snr",), data={"list": "made up", "sha256": str(number)})
    report = validate(side("a.onnx", 0.05), side("b.onnx", 0.051), utterances, options, results=path)
    said = json.dumps(to_json(report), sort_keys=True)
    return {
        "seconds": round(time.monotonic() - started, 1),
        "peak_mb_with_the_list_alone": listed_mb,
        "peak_mb": _peak_mb(),
        "results_mb": round(path.stat().st_size / 1e6, 1),
        "report_sha256": hashlib.sha256(said.encode()).hexdigest(),
    }


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000


def child(number: int, path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--utterances", str(number), "--child", str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(process.communicate()[0])
    return found


def killed_at(number: int, path: Path, size: float) -> int:
    """Lines that a killed process leaves."""
    process = child(number, path)
    while process.poll() is None and not (path.is_file() and path.stat().st_size > size):
        time.sleep(0.05)
    process.kill()
    process.communicate()
    return path.read_bytes().count(b"\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--utterances", type=int, default=100_000)
    parser.add_argument("--child", type=Path)
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(measured(asked.utterances, asked.child)))
        return
    with tempfile.TemporaryDirectory() as folder:
        whole = finished(child(asked.utterances, Path(folder, "whole.jsonl")))
        path = Path(folder, "killed.jsonl")
        lines = killed_at(asked.utterances, path, 0.6 * whole["results_mb"] * 1e6)
        resumed = finished(child(asked.utterances, path))
    found = {
        "what": "a comparison with synthetic answers: memory, time and a run that was killed",
        "machine": platform.machine(),
        "python": platform.python_version(),
        "utterances": asked.utterances,
        "whole": whole,
        "killed_after_lines": lines,
        "resumed": resumed,
        "same_report": whole["report_sha256"] == resumed["report_sha256"],
    }
    if asked.utterances == parser.get_default("utterances"):
        RESULTS.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
