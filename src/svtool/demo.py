"""`svtool demo`: the whole chain on the embedded model, as the commands a person would type."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from svtool import tiny
from svtool.artifacts import ENGINES
from svtool.errors import SvtoolError

UTTERANCES = 600  # of tiny:drift, spread evenly over its three parts; the full 2400 take four times as long
SEARCHED_ON = 300
_INCONCLUSIVE = 3
_CLIPS = ENGINES / "clips"
_SEARCHED = ENGINES / "tiny" / "searched.plan"


def run() -> int:
    """Run the commands in order; stops at the first that fails and returns its exit code."""
    from rich.console import Console

    from svtool.progress import RichProgress

    console = Console()
    began = time.perf_counter()
    with RichProgress() as progress:
        progress.note("preparing 2,400 utterances from the embedded recordings (once, about 15 s)")
        tiny.render("drift", progress)
    verdict = 0
    for title, arguments, accepted in _steps():
        console.rule(f"[bold]{title}")
        console.print(f"[bold cyan]$ svtool {' '.join(arguments)}", highlight=False, soft_wrap=True)
        code = subprocess.run([sys.executable, "-m", "svtool", *arguments], check=False).returncode
        if code not in accepted:
            raise SvtoolError(f"the demo stopped: svtool {arguments[0]} ended with exit code {code}")
        verdict = max(verdict, code)
    console.rule("[bold green]Done")
    console.print(
        _closing(verdict, time.perf_counter() - began), markup=False, highlight=False, soft_wrap=True
    )
    return 0


def _steps() -> list[tuple[str, list[str], tuple[int, ...]]]:
    clips = [str(path) for path in _clips()]
    either = (0, _INCONCLUSIVE)
    search = [
        "build-trt",
        "--int8",
        "--drift-budget",
        "0.5",
        "--limit",
        str(SEARCHED_ON),
        "-o",
        str(_SEARCHED),
    ]
    return [
        ("1. checkpoint to ONNX", ["export", "tiny"], (0,)),
        ("2. ONNX to an FP16 TensorRT engine", ["build-trt", "--fp16"], (0,)),
        ("3. ... and to an INT8 one", ["build-trt", "--int8"], (0,)),
        ("4. the most INT8 that costs at most half a point", search, either),
        ("5. what did that cost?", ["validate-wer", "--limit", str(UTTERANCES)], either),
        (
            "6. real recordings to text",
            ["transcribe", *clips, "-m", str(_SEARCHED.with_suffix(".onnx"))],
            (0,),
        ),
    ]


def _clips() -> list[Path]:
    """One clean utterance of each word set, copied out of the cache: its long paths would fill the transcript."""
    folder = tiny.render("drift").parent
    first: dict[str, Path] = {}
    for subset, number, word_set, _ in tiny.sequences("drift"):
        first.setdefault(word_set, folder / f"{subset.name}-{number:04d}.wav")
    _CLIPS.mkdir(parents=True, exist_ok=True)
    return [Path(shutil.copyfile(path, _CLIPS / f"{word_set}.wav")) for word_set, path in first.items()]


def _closing(verdict: int, seconds: float) -> str:
    said = {0: "pass (exit 0)", _INCONCLUSIVE: "inconclusive (exit 3): more utterances would decide"}[verdict]
    return (
        f"The drift gate said: {said}. All six steps took {seconds:.0f} s.\n"
        "Serve it:                  .venv/bin/pip install -e '.[serve]' && .venv/bin/svtool serve\n"
        "The official checkpoint:   .venv/bin/pip install -e '.[hub]' && .venv/bin/svtool export iic/SenseVoiceSmall\n"
        "                           then build-trt, validate-wer and serve with engines/SenseVoiceSmall"
    )
