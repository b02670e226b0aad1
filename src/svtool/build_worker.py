"""The first half of a build, run in a child process: precision passes, the twin and its parity.

Payloads and results are plain JSON values. Knows nothing of manifests or where the results end up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svtool import calibration, layers, parity, precision, quantize, smooth
from svtool import graph as graphs
from svtool.errors import ArtifactError
from svtool.progress import Progress

if TYPE_CHECKING:
    import onnx_ir as ir

FP16_MIN_SQNR_DB = 30.0  # measured 60 dB and more; below this a pass has broken something
WEIGHTS_MIN_SQNR_DB = 15.0  # weight-only; the embedded model reaches 43
INT8_MIN_SQNR_DB = 3.0  # far below any useful engine: catches ranges of another scale


def prepare(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Write `twin` (logits head) and `graph` (head asked for) from the float32 `model`.

    `layers` are the exact names to quantize, `cache` holds the ranges (None: no layer has any).
    """
    model_path = Path(payload["model"])
    ranges = (
        calibration.load_cache(Path(payload["cache"]), payload["onnx_digest"]) if payload["cache"] else None
    )
    progress.stage("rewriting the graph")
    model = graphs.load_model(model_path)
    if ranges is not None:
        calibration.check_complete(ranges, model, Path(payload["cache"]))
    if ranges is not None and ranges.exponents:
        model = smooth.smooth(model, ranges.exponents)
    share = layers.int8_share(model, payload["layers"])
    twin, precision_map = _rewritten(model, payload, ranges)
    tags = payload["tag_ids"]
    if tags:  # a runtime needs them with either head
        twin.metadata_props[graphs.TAG_IDS_KEY] = ",".join(str(tag) for tag in tags)
    _write(twin, Path(payload["twin"]))
    # the plan's graph is written from the checked twin, so what is measured is what is built
    greedy = precision.add_greedy_head(twin, tags) if payload["head"] == "greedy" else twin
    _write(greedy, Path(payload["graph"]))
    expected = Counter(node.op_type for node in greedy.graph)
    del twin, greedy, model
    progress.stage("checking the twin in ONNX Runtime")
    measured = parity.compare(model_path, Path(payload["twin"]), threads=payload["threads"])
    _check_parity(measured, payload, ranges)
    return {
        "parity": measured.to_json(),
        "calibration": _calibration_facts(ranges) if ranges is not None else None,
        "quantized": payload["layers"],
        "precision_map": precision_map,
        "int8_share": share,
        # what the parsed network must still have
        "expected": {
            "QuantizeLinear": expected["QuantizeLinear"],
            "DequantizeLinear": expected["DequantizeLinear"],
            "both": len(payload["layers"]) if payload["precision"] == "int8" else 0,
            "weights": len(payload["layers"]) if payload["precision"] == "int8-weights" else 0,
        },
        "graph_bytes": Path(payload["graph"]).stat().st_size,
    }


def _rewritten(
    model: ir.Model, payload: Mapping[str, Any], ranges: calibration.Calibration | None
) -> tuple[ir.Model, dict[str, list[str]]]:
    """The model in the precision asked for, and which layers have which."""
    chosen = payload["layers"]
    # kernels of CPUs: float32, or int8 in a form of its own with float32 around it
    on_cpu = payload.get("cpu_form", False)
    if not on_cpu:
        heard = ranges.absmax if ranges is not None else {}  # empty where scales came from another tool
        largest = heard or _loud_on_noise(Path(payload["model"]), payload["threads"])
        model = precision.to_fp16(model, largest, keep_fp32=payload["keep_fp32"])
    precision_map = _precision_map(model, chosen)
    if payload["precision"] == "int8":
        assert ranges is not None
        passed = quantize.to_int8_cpu if on_cpu else quantize.to_int8
        model = passed(model, ranges.amax, layers=chosen)
    elif payload["precision"] == "int8-weights":
        model = quantize.to_int8_weights(model, layers=chosen)
    return model, precision_map


def _precision_map(twin: ir.Model, quantized: Sequence[str]) -> dict[str, list[str]]:
    """Linear layers by the type they multiply in; read from the fp16 graph, before its weights become int8."""
    found: dict[str, list[str]] = {"int8": [], "fp16": [], "fp32": []}
    chosen = set(quantized)
    for linear in graphs.linears(twin):
        weight = linear.node.inputs[1]
        half = weight is not None and weight.dtype is not None and weight.dtype.name == "FLOAT16"
        found["int8" if linear.name in chosen else "fp16" if half else "fp32"].append(linear.name)
    return found


def _calibration_facts(ranges: calibration.Calibration) -> dict[str, Any]:
    kept = (
        *("list_name", "list_digest", "method", "percentile", "smooth"),
        *("used", "frames", "skipped", "warnings", "sqnr"),
    )
    described = ranges.to_json()
    facts = {"digest": ranges.digest} | {key: described[key] for key in kept}
    return facts | {"audio_digests": list(ranges.audio_digests)}


def _loud_on_noise(model_path: Path, threads: int | None) -> dict[str, float]:
    """Tensors that noise alone brings near the limit of fp16. Quiet ones stay unmeasured: noise is not speech.

    ONNX Runtime cannot show an overflow on a CPU (it keeps inner fp16 tensors in float32), so ranges must.
    """
    noise = [parity.make_feed(frames, lengths)["speech"][0] for frames, lengths in parity.SHAPES]
    samples = [calibration.Sample(f"noise of {len(feats)} frames", feats, 0, 15) for feats in noise]
    found = calibration.largest(model_path, samples, threads=threads)
    return {name: largest for name, largest in found.items() if largest > precision.FP16_SAFE}


def _write(model: ir.Model, path: Path) -> None:
    import onnx

    graphs.save_model(model, path)
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        raise ArtifactError(f"the rewritten graph is not valid ONNX: {error}") from error


def _check_parity(
    measured: parity.Parity, payload: Mapping[str, Any], ranges: calibration.Calibration | None
) -> None:
    least = {"int8": INT8_MIN_SQNR_DB, "int8-weights": WEIGHTS_MIN_SQNR_DB}.get(
        payload["precision"], FP16_MIN_SQNR_DB
    )
    if measured.sqnr_db < least:
        source = f" with the calibration on {ranges.list_name or 'a cache'}" if ranges is not None else ""
        raise ArtifactError(
            f"the {payload['precision']} graph{source} does not resemble {payload['model']}: {measured.sqnr_db:.1f} dB "
            f"against at least {least:g} dB; calibrate on other audio with  svtool build-trt --int8 --data LIST"
        )
