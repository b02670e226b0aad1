"""Int8 for ONNX Runtime on a CPU: which form is right everywhere, and which is fast.

    python benchmarks/ort.py [MODEL=engines/tiny/model.onnx] [--keep DIR]
    qemu-x86_64 -cpu Haswell python benchmarks/ort.py --score DIR     # a CPU without VNNI, emulated: slow

Two models: MODEL on speech (tiny:calibration), and three random blocks of SenseVoice's width on noise. For each form:
SQNR of the logits against float32 with and without svtool's switch (session.x64quantprecision), on this CPU, and CPU
seconds of one thread for 10 s of audio, all forms in turn in one run, so that the ratios hold on a busy machine too.
`--score` only repeats the SQNR, on 40 frames. Writes benchmarks/results/ort.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

if TYPE_CHECKING:
    import onnx_ir as ir

    from svtool.calibration import Sample

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "ort.json"
SWITCH = "session.x64quantprecision"
FRAMES, SECONDS = 167, 10.0  # LFR frames of the utterance that is timed
RUNS, WARM_UP, UTTERANCES, SHORT = 40, 3, 12, 40
# form -> what it is; "+" times it with the switch too
FORMS = {
    "fp32": "float32",
    "qdq": "int8 weights, int8 activations (to_int8, as in plans)",
    "qdq+": "the same with the switch",
    "weights7": "7-bit weights, uint8 activations",
    "weights_u8": "uint8 weights, uint8 activations",
    "cpu": "chosen: int8 weights, pairs within 16 bits, uint8 activations (to_int8_cpu)",
    "weights_only": "int8 weights alone (to_int8_weights)",
}


def wide_model(folder: Path) -> tuple[Path, list[Sample]]:
    sys.path.append(str(ROOT / "tests"))
    import small_graph
    from svtool.calibration import Sample

    small_graph.WIDTH, small_graph.UNITS, small_graph.VOCABULARY = 512, 2048, 4000
    rng = np.random.default_rng(1)
    noise = [rng.standard_normal((FRAMES, 560), dtype=np.float32) for _ in range(20)]
    samples = [Sample(f"noise {index}", one, 0, 15) for index, one in enumerate(noise)]
    return small_graph.write(folder / "model.onnx"), samples


def speech_of(model: Path) -> list[Sample]:
    from svtool.audio import decode_audio
    from svtool.calibration import Sample
    from svtool.recognizer import open_recognizer
    from svtool.utterances import read_utterances

    recognizer = open_recognizer(model, threads=1)
    heard = read_utterances("tiny:calibration").utterances
    return [Sample(one.id, recognizer.features(decode_audio(one.audio).samples), 0, 15) for one in heard]


def with_weights(chosen: ir.Model, model: ir.Model, most: int, zero: int) -> ir.Model:
    """The chosen form with other weights: whole numbers up to `most`, around `zero`."""
    import onnx_ir as ir

    changed = chosen.clone()
    kind = np.uint8 if zero else np.int8
    for name, value in model.graph.initializers.items():
        if f"{name}/int8" not in changed.graph.initializers or value.const_value is None:
            continue
        weight = value.const_value.numpy()
        steps = (np.abs(weight).max(axis=0) / most).astype(np.float32)
        constants = {
            "int8": (np.rint(weight / steps) + zero).astype(kind),
            "scales": steps,
            "zeros": np.full(len(steps), zero, kind),
        }
        for suffix, numbers in constants.items():
            one = changed.graph.initializers[f"{name}/{suffix}"]
            one.const_value = ir.Tensor(numbers, name=str(one.name))
            one.type = ir.TensorType(one.const_value.dtype)
    return changed


def make_forms(path: Path, samples: list[Sample], folder: Path) -> None:
    from svtool import graph as graphs
    from svtool import quantize
    from svtool.calibration import calibrate

    amax = calibrate(path, samples, threads=1).amax
    model = graphs.load_model(path)
    chosen = quantize.to_int8_cpu(model, amax)
    forms = {
        "fp32": model,
        "qdq": quantize.to_int8(model, amax),
        "weights7": with_weights(chosen, model, 63, 0),
        "weights_u8": with_weights(chosen, model, 127, 128),
        "cpu": chosen,
        "weights_only": quantize.to_int8_weights(model),
    }
    for name, form in forms.items():
        graphs.save_model(form, folder / f"{name}.onnx")
    np.savez(folder / "features.npz", *[one.feats for one in samples[:: max(1, len(samples) // UTTERANCES)]])


def session(path: Path, switched: bool) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if switched:
        options.add_session_config_entry(SWITCH, "1")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def feed(feats: Any) -> dict[str, Any]:
    ints = {"speech_lengths": len(feats), "language": 0, "textnorm": 15}
    return {"speech": feats[None]} | {name: np.array([value], np.int32) for name, value in ints.items()}


def sqnr_db(folder: Path, name: str, switched: bool, inputs: list[Any]) -> float:
    reference, test = session(folder / "fp32.onnx", False), session(folder / f"{name}.onnx", switched)
    signal = noise = 0.0
    for feats in inputs:
        one, two = (run.run(["ctc_logits"], feed(feats))[0].astype(np.float64) for run in (reference, test))
        signal += float(np.square(one).sum())
        noise += float(np.square(one - two).sum())
    return round(10 * float(np.log10(signal / noise)), 1)


def scores(folder: Path, frames: int | None = None) -> dict[str, dict[str, float]]:
    with np.load(folder / "features.npz") as stored:
        inputs = [stored[name] for name in stored.files]
    if frames is not None:
        inputs = [inputs[0][20 : 20 + frames]]
    names = [name for name in FORMS if name != "fp32" and "+" not in name]
    found = {}
    for name in names:
        found[name] = {
            "plain_db": sqnr_db(folder, name, False, inputs),
            "switched_db": sqnr_db(folder, name, True, inputs),
        }
        print(f"{folder.name:6} {name:13} {found[name]}", flush=True)
    return found


def timed(folder: Path) -> dict[str, float]:
    """Median CPU seconds of one run of FRAMES frames, by form."""
    feats = np.random.default_rng(0).standard_normal((FRAMES, 560), dtype=np.float32)
    opened = {name: session(folder / f"{name.rstrip('+')}.onnx", "+" in name) for name in FORMS}
    times: dict[str, list[float]] = {name: [] for name in FORMS}
    names = list(FORMS)
    for run in range(WARM_UP + RUNS):
        first = run % len(names)
        for name in names[first:] + names[:first]:
            began = time.process_time()
            opened[name].run(None, feed(feats))
            if run >= WARM_UP:
                times[name].append(time.process_time() - began)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def measure(folder: Path) -> list[dict[str, Any]]:
    score, seconds = scores(folder), timed(folder)
    return [
        {
            "model": folder.name,
            "form": name,
            "what": what,
            "sqnr_db": score.get(name.rstrip("+"), {}).get("switched_db" if "+" in name else "plain_db"),
            "bytes": (folder / f"{name.rstrip('+')}.onnx").stat().st_size,
            "cpu_ms": round(1e3 * seconds[name], 2),
            "rtfx_one_core": round(SECONDS / seconds[name], 1),
            "speed_against_fp32": round(seconds["fp32"] / seconds[name], 2),
        }
        for name, what in FORMS.items()
    ]


def machine() -> dict[str, Any]:
    from svtool.wer.gate import cpu_flags

    told = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    names = [line.split(":")[1].strip() for line in told if line.startswith("model name")]
    name = names[0] if names else platform.processor()
    return {"cpu": name, "flags": list(cpu_flags()), "cores": os.cpu_count(), "threads": 1}


def run(model: Path, work: Path) -> None:
    rows = []
    sources: dict[str, Callable[[Path], tuple[Path, list[Sample]]]] = {
        "speech": lambda _: (model, speech_of(model)),
        "wide": wide_model,
    }
    for name, source in sources.items():
        folder = work / name
        folder.mkdir(parents=True)
        make_forms(*source(folder), folder)
        rows += measure(folder)
    for row in rows:
        print(
            f"{row['model']:7} {row['form']:13} {row['sqnr_db'] or '-':>6} dB  {row['cpu_ms']:8.2f} ms  "
            f"RTFx {row['rtfx_one_core']:8.1f}  x{row['speed_against_fp32']:.2f}  {row['bytes'] / 1e6:6.1f} MB"
        )
    report = {
        "what": f"int8 forms for ONNX Runtime on a CPU; {FRAMES} LFR frames (10 s of audio), one thread, in turn",
        "runs": RUNS,
        "clock": "CPU time of the process",
        "machine": machine(),
        "python": platform.python_version(),
        "onnxruntime": onnxruntime.__version__,
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(report, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path, default=Path("engines/tiny/model.onnx"))
    parser.add_argument("--keep", type=Path, help="write the graphs here and keep them")
    parser.add_argument("--score", type=Path, help="score graphs kept before, nothing else")
    arguments = parser.parse_args()
    if arguments.score is not None:
        scores(arguments.score / "speech", SHORT)
    elif arguments.keep is not None:
        run(arguments.model, arguments.keep)
    else:
        with tempfile.TemporaryDirectory(prefix="svtool-ort-") as work:
            run(arguments.model, Path(work))


if __name__ == "__main__":
    main()
