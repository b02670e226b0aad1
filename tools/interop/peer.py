"""Recognises WAV files with one peer library, for run.py. Runs in the environment of the peers, not in svtool's.

One process per library: both bring an ONNX Runtime of their own.

    python peer.py funasr-onnx|sherpa-onnx JOB.json RESULT.json
"""

from __future__ import annotations

import json
import sys
import time
import wave
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any


def funasr_onnx(job: dict[str, Any]) -> Callable[[], list[str]]:
    """Tagged strings, from batches."""
    from funasr_onnx import SenseVoiceSmall

    model = SenseVoiceSmall(job["folder"], batch_size=job["batch"], intra_op_num_threads=job["threads"])
    textnorm = "withitn" if job["itn"] else "woitn"
    return lambda: list(model(job["wavs"], language="auto", textnorm=textnorm))


def sherpa_onnx(job: dict[str, Any]) -> Callable[[], list[str]]:
    """Strings without the first four tokens, from batches."""
    import sherpa_onnx as library

    folder = Path(job["folder"])
    recognizer = library.OfflineRecognizer.from_sense_voice(
        model=str(folder / "model.onnx"),
        tokens=str(folder / "tokens.txt"),
        use_itn=job["itn"],
        num_threads=job["threads"],
    )

    def run() -> list[str]:
        texts: list[str] = []
        for first in range(0, len(job["wavs"]), job["batch"]):
            streams = []
            for path in job["wavs"][first : first + job["batch"]]:
                stream = recognizer.create_stream()
                stream.accept_waveform(16000, samples(path))
                streams.append(stream)
            recognizer.decode_streams(streams)
            texts += [stream.result.text for stream in streams]
        return texts

    return run


def samples(path: str) -> Any:
    """Mono float32 [N] of a 16-bit WAV file at 16 kHz."""
    import numpy as np

    with wave.open(path) as source:
        return np.frombuffer(source.readframes(source.getnframes()), dtype="<i2").astype(np.float32) / 32768


PEERS = {"funasr-onnx": funasr_onnx, "sherpa-onnx": sherpa_onnx}


def main() -> None:
    name, job, result = sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3])
    began = time.perf_counter()
    run = PEERS[name](job)
    loaded = time.perf_counter()
    texts = run()
    report = {
        "version": metadata.version(name),
        "load_s": round(loaded - began, 2),
        "run_s": round(time.perf_counter() - loaded, 2),
        "texts": texts,
    }
    result.write_text(json.dumps(report, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
