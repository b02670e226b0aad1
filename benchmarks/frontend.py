"""The front end against kaldi-native-fbank and asrfront, in turn on the same audio, one core.

    pip install kaldi-native-fbank asrfront && python benchmarks/frontend.py

Times 10 s of noise, median of 200 runs after 20 warm-up runs; the three take turns, so that a change of the
machine's speed meets all of them. Writes benchmarks/results/frontend.json.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from svtool.assets import find_assets
from svtool.frontend import Cmvn, FloatArray, Frontend

RESULTS = Path(__file__).parent / "results" / "frontend.json"
RUNS, WARM_UP = 200, 20


def ours(cmvn: Cmvn) -> Callable[[FloatArray], FloatArray]:
    return Frontend(cmvn).features


def kaldi_native_fbank(cmvn: Cmvn) -> Callable[[FloatArray], FloatArray]:
    """As funasr-onnx and most scripts call it: one Python call per frame, then LFR and CMVN in numpy."""
    import kaldi_native_fbank as knf

    options = knf.FbankOptions()
    options.frame_opts.dither = 0.0
    options.frame_opts.window_type = "hamming"
    options.frame_opts.snip_edges = True
    options.mel_opts.num_bins = 80
    options.energy_floor = 0.0

    def features(samples: FloatArray) -> FloatArray:
        bank = knf.OnlineFbank(options)
        bank.accept_waveform(16000, (samples * 32768).tolist())
        frames = np.stack([bank.get_frame(index) for index in range(bank.num_frames_ready)])
        starts = np.arange(-(-len(frames) // 6)) * 6 - 3
        rows = np.clip(starts[:, None] + np.arange(7), 0, len(frames) - 1)
        return (frames[rows].reshape(len(rows), 560) + cmvn.shift) * cmvn.scale

    return features


def asrfront(cmvn: Cmvn) -> Callable[[FloatArray], FloatArray]:
    from asrfront import sensevoice

    return lambda samples: np.asarray(
        sensevoice.fbank(samples, cmvn=(cmvn.shift, cmvn.scale)), dtype=np.float32
    )


def machine() -> dict[str, Any]:
    names = [line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")]
    return {"cpu": names[0] if names else platform.processor(), "cores": os.cpu_count(), "threads": 1}


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.is_file() else []


def on_one_core() -> None:
    """BLAS reads its thread count when it is loaded, so set it and start again."""
    if os.environ.get("OMP_NUM_THREADS") != "1":
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | one)


def main() -> None:
    on_one_core()
    cmvn = find_assets("tiny").cmvn
    samples = (np.random.default_rng(0).standard_normal(160_000) * 0.1).astype(np.float32)
    peers = {"svtool": ours(cmvn), "kaldi-native-fbank": kaldi_native_fbank(cmvn), "asrfront": asrfront(cmvn)}
    times: dict[str, list[float]] = {name: [] for name in peers}
    for run in range(RUNS + WARM_UP):
        for name, features in peers.items():
            began = time.perf_counter()
            features(samples)
            if run >= WARM_UP:
                times[name].append(time.perf_counter() - began)
    reference = peers["kaldi-native-fbank"](samples)
    difference = float(np.abs(peers["svtool"](samples) - reference).max())
    rows = [
        {
            "name": name,
            "version": importlib.metadata.version(name),
            "median_ms": round(statistics.median(one) * 1e3, 3),
            "minimum_ms": round(min(one) * 1e3, 3),
        }
        for name, one in times.items()
    ]
    for row in rows:
        print(
            f"{row['name']:20} {row['version']:10} median {row['median_ms']:7.2f} ms  min {row['minimum_ms']:7.2f} ms"
        )
    print(f"largest difference svtool - kaldi-native-fbank after CMVN: {difference:.1e}")
    report = {
        "what": "10 s of noise at 16 kHz to [167, 560] features, one core, in turn",
        "runs": RUNS,
        "machine": machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "rows": rows,
        "max_difference_to_kaldi_native_fbank": difference,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
