"""Loads exported directories in funasr-onnx and sherpa-onnx and compares their texts with svtool's (README.md).

python tools/interop/run.py [--full DIR]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from svtool.assets import LANGUAGES, QUERIES, TEXTNORMS
from svtool.audio import decode_audio
from svtool.backends import Batch, FloatArray
from svtool.decode import greedy, raw_text
from svtool.errors import SvtoolError
from svtool.export import export
from svtool.manifest import sha256_file, versions, write_json
from svtool.recognizer import Options, Recognizer, open_recognizer
from svtool.tiny import render
from svtool.utterances import read_utterances

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
ENVIRONMENT = REPOSITORY / ".venv-interop"
RESULTS = REPOSITORY / "benchmarks" / "results" / "interop.json"
FUNASR_ONNX = "funasr-onnx==0.4.3"
TINY, FULL = "tiny", "full size, random"
TINY_UTTERANCES, FULL_UTTERANCES = 24, 6
_TAG = re.compile(r"<\|[^<>|]*\|>")


@dataclass(frozen=True)
class Run:
    """One way to call a peer on one model."""

    peer: str
    itn: bool
    batch: int


# funasr-onnx also in batches: texts must not depend on the neighbours
TINY_RUNS = [
    Run(peer, itn, batch)
    for peer in ("funasr-onnx", "sherpa-onnx")
    for itn, batch in ((False, 1), (True, 1), (False, 8))
]
FULL_RUNS = [Run("funasr-onnx", False, 1), Run("sherpa-onnx", False, 1)]


@dataclass(frozen=True)
class Expected:
    """svtool's results for one utterance."""

    text: str
    raw: str  # with tags, as FunASR prints it
    tail: str  # without tags and without the first four tokens, as sherpa-onnx prints it


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--full", type=Path, metavar="DIR", help="exported directory of a full-size model, too"
    )
    options = parser.parse_args()
    python = environment()
    with tempfile.TemporaryDirectory(prefix="svtool-interop-") as work:
        model = export(TINY, Path(work) / TINY).model
        rows = check(TINY, model.parent, TINY_RUNS, TINY_UTTERANCES, python)
    if options.full:
        rows += check(FULL, options.full, FULL_RUNS, FULL_UTTERANCES, python)
    else:
        rows += kept_rows()
    write_json(RESULTS, report(rows))
    show(rows)
    different = [row for row in rows if row["equal"] != row["utterances"]]
    return 1 if different else 0


def environment() -> Path:
    """The peers' own Python, installed on first use and whenever the requirements change."""
    wanted = hashlib.sha256((HERE / "requirements.txt").read_bytes() + FUNASR_ONNX.encode()).hexdigest()
    stamp, python = ENVIRONMENT / ".installed", ENVIRONMENT / "bin" / "python"
    if not stamp.is_file() or stamp.read_text() != wanted:
        print(f"installing the peers into {ENVIRONMENT} (about 0.7 GB)", file=sys.stderr)
        venv.create(ENVIRONMENT, with_pip=True, clear=True, symlinks=True)
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "-r", str(HERE / "requirements.txt")], check=True)
        subprocess.run([*pip, "--no-deps", FUNASR_ONNX], check=True)
        stamp.write_text(wanted)
    return python


def check(name: str, folder: Path, runs: Sequence[Run], count: int, python: Path) -> list[dict[str, Any]]:
    """One row for every run, and on stderr every text that differs."""
    wavs = clean_utterances(count)
    recognizer = open_recognizer(folder, device="cpu")
    try:
        expected = {itn: ours(recognizer, wavs, itn) for itn in {run.itn for run in runs}}
    finally:
        recognizer.close()
    return [_row(name, folder, run, wavs, expected[run.itn], python) for run in runs]


def clean_utterances(count: int) -> list[Path]:
    """Clean utterances of tiny:drift, spread over its word sets."""
    clean = [one for one in read_utterances(str(render("drift"))).utterances if one.id.startswith("clean-")]
    return [clean[index].audio for index in np.linspace(0, len(clean) - 1, count).astype(int)]


def ours(recognizer: Recognizer, wavs: Sequence[Path], itn: bool) -> list[Expected]:
    waveforms = [decode_audio(path).samples for path in wavs]
    heard = recognizer.transcribe(waveforms, Options(itn=itn))
    results = []
    for samples, transcript in zip(waveforms, heard, strict=True):
        if isinstance(transcript, SvtoolError):
            raise transcript
        tokens, ids = recognizer.assets.tokens, _token_ids(recognizer, samples, itn)
        tail = _without_tags(raw_text(ids[QUERIES:], tokens))
        results.append(Expected(transcript.text, raw_text(ids, tokens), tail))
    return results


def _token_ids(recognizer: Recognizer, samples: FloatArray, itn: bool) -> list[int]:
    """All tokens of one utterance, tags included, repeats collapsed."""
    feats = recognizer.features(samples)[None]
    language, textnorm = LANGUAGES["auto"], TEXTNORMS["withitn" if itn else "woitn"]
    controls = (np.array([one], dtype=np.int32) for one in (feats.shape[1], language, textnorm))
    return greedy(recognizer.backend.infer(Batch(feats, *controls)).token_ids[0])


def _row(
    name: str, folder: Path, run: Run, wavs: Sequence[Path], expected: Sequence[Expected], python: Path
) -> dict[str, Any]:
    found = theirs(folder, run, wavs, python)
    with_tags = run.peer == "funasr-onnx"
    pairs = [
        (_without_tags(text), _comparable(one, random=name != TINY, with_tags=with_tags))
        for text, one in zip(found["texts"], expected, strict=True)
    ]
    for path, (text, our_text) in zip(wavs, pairs, strict=True):
        if text != our_text:
            print(f"{name}, {run.peer}, {path.stem}:\n  {text}\n  svtool: {our_text}", file=sys.stderr)
    tagged = [text == one.raw for text, one in zip(found["texts"], expected, strict=True)]
    return {
        "model": name,
        "model_sha256": sha256_file(folder / "model.onnx"),
        "peer": run.peer,
        "version": found["version"],
        "textnorm": "withitn" if run.itn else "woitn",
        "batch": run.batch,
        "utterances": len(wavs),
        "equal": sum(text == our_text for text, our_text in pairs),
        "equal_with_tags": sum(tagged) if with_tags else None,
        "not_empty": sum(bool(text) for text, _ in pairs),
        "load_s": found["load_s"],
        "run_s": found["run_s"],
        "measured": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _comparable(one: Expected, *, random: bool, with_tags: bool) -> str:
    """svtool's text; of a random model, which does not put its tags first, the tokens that the peer prints."""
    if not random:
        return _without_tags(one.text)
    return _without_tags(one.raw) if with_tags else one.tail


def theirs(folder: Path, run: Run, wavs: Sequence[Path], python: Path) -> dict[str, Any]:
    job = {
        "folder": str(folder.resolve()),
        "wavs": [str(path) for path in wavs],
        "itn": run.itn,
        "batch": run.batch,
        "threads": os.cpu_count() or 1,
    }
    with tempfile.TemporaryDirectory(prefix="svtool-interop-") as work:
        asked, answer = Path(work) / "job.json", Path(work) / "result.json"
        asked.write_text(json.dumps(job))
        command = [str(python), "-W", "ignore", str(HERE / "peer.py"), run.peer, str(asked), str(answer)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    return found


def _without_tags(text: str) -> str:
    return " ".join(_TAG.sub(" ", text).split())


def kept_rows() -> list[dict[str, Any]]:
    """The full-size rows of an earlier run: without --full they are not measured again."""
    if not RESULTS.is_file():
        return []
    return [row for row in json.loads(RESULTS.read_text())["rows"] if row["model"] != TINY]


def report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "what": "texts of exported directories in other runtimes, compared with svtool's for the same model.onnx",
        "command": "make interop (full size: python tools/interop/run.py --full DIR)",
        "machine": {"platform": platform.platform(), "cores": os.cpu_count()},
        "versions": versions("onnxruntime-gpu", "onnxruntime", "torch", "onnx"),
        "rows": rows,
    }


def show(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="texts equal to svtool's")
    for heading in ("model", "peer", "version", "textnorm", "batch", "equal", "with tags"):
        table.add_column(heading)
    for row in rows:
        equal = f"{row['equal']} of {row['utterances']}"
        style = "green" if row["equal"] == row["utterances"] else "red"
        cells = [str(row[key]) for key in ("model", "peer", "version", "textnorm", "batch")]
        tagged = row["equal_with_tags"]
        table.add_row(*cells, f"[{style}]{equal}[/]", "-" if tagged is None else str(tagged))
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
