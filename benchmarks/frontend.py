"""The front end against kaldi-native-fbank and asrfront (compiled C++ and C), same audio, one core.

    pip install kaldi-native-fbank asrfront && python benchmarks/frontend.py

Times 10 s of noise to normalised features: median and minimum of 204 runs after 18 warm-up runs, in CPU time of the
process, so that other programs' turns on the core do not count (on a quiet machine it equals wall time; all threads
count, should a library start some). The three take turns in every order, so that neither a change of the machine's
speed nor what the one before left in the cache favours any. Writes benchmarks/results/frontend.json.
"""

from __future__ import annotations

import importlib.metadata
import itertools
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
RUNS, WARM_UP = 204, 18  # multiples of the six orders

Peer = Callable[[FloatArray], FloatArray]


def ours(cmvn: Cmvn) -> Peer:
    return Frontend(cmvn).features


def kaldi_native_fbank(cmvn: Cmvn) -> Peer:
    """As funasr-onnx and most scripts call it: a new OnlineFbank per utterance, samples as a list, frame by frame.

    A list is what its binding takes fastest (an array is slower by a third). LFR and CMVN in numpy, without a loop.
    """
    import kaldi_native_fbank as knf  # type: ignore[import-untyped]

    options = knf.FbankOptions()
    options.frame_opts.dither = 0.0
    options.frame_opts.window_type = "hamming"
    options.frame_opts.snip_edges = True
    options.mel_opts.num_bins = 80
    options.energy_floor = 0.0

    def features(samples: FloatArray) -> FloatArray:
        bank = knf.OnlineFbank(options)
        bank.accept_waveform(16000, (samples * 32768).tolist())
        frames = np.empty((bank.num_frames_ready, 80), dtype=np.float32)
        for index in range(len(frames)):
            frames[index] = bank.get_frame(index)
        starts = np.arange(-(-len(frames) // 6)) * 6 - 3
        rows = np.clip(starts[:, None] + np.arange(7), 0, len(frames) - 1)
        stacked: FloatArray = (frames[rows].reshape(len(rows), 560) + cmvn.shift) * cmvn.scale
        return stacked

    return features


def asrfront(cmvn: Cmvn) -> Peer:
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


def measure(peers: dict[str, Peer], samples: FloatArray) -> dict[str, list[float]]:
    """CPU seconds of each run, by name."""
    times: dict[str, list[float]] = {name: [] for name in peers}
    orders = itertools.cycle(itertools.permutations(peers))
    for run, order in zip(range(WARM_UP + RUNS), orders, strict=False):
        for name in order:
            began = time.process_time()
            peers[name](samples)
            if run >= WARM_UP:
                times[name].append(time.process_time() - began)
    return times


def row(name: str, seconds: list[float]) -> dict[str, Any]:
    return {
        "name": name,
        "version": importlib.metadata.version(name),
        "median_ms": round(statistics.median(seconds) * 1e3, 3),
        "minimum_ms": round(min(seconds) * 1e3, 3),
    }


def show(rows: list[dict[str, Any]]) -> None:
    fastest = {key: min(one[key] for one in rows) for key in ("median_ms", "minimum_ms")}
    for one in rows:
        figures = [
            f"{key.removesuffix('_ms')} {one[key]:7.2f} ms ({one[key] / fastest[key]:5.2f}x)"
            for key in fastest
        ]
        print(f"{one['name']:20} {one['version']:8} {'   '.join(figures)}")


def main() -> None:
    on_one_core()
    cmvn = find_assets("tiny").cmvn
    samples = (np.random.default_rng(0).standard_normal(160_000) * 0.1).astype(np.float32)
    peers = {"svtool": ours(cmvn), "kaldi-native-fbank": kaldi_native_fbank(cmvn), "asrfront": asrfront(cmvn)}
    rows = [row(name, seconds) for name, seconds in measure(peers, samples).items()]
    difference = float(np.abs(peers["svtool"](samples) - peers["kaldi-native-fbank"](samples)).max())
    show(rows)
    print(f"largest difference svtool - kaldi-native-fbank after CMVN: {difference:.1e}")
    report = {
        "what": "10 s of noise at 16 kHz to [167, 560] features, one core, in turn",
        "runs": RUNS,
        "clock": "CPU time of the process",
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
