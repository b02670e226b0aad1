"""The two long halves of a build, each run in a child process by `build.py`.

`prepare` makes the graphs (calibration, precision passes, twin, parity); `engine` turns one graph into a plan.
Payloads and results are plain JSON values. Knows nothing of manifests or where the results end up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svtool import calibration, parity, precision
from svtool import graph as graphs
from svtool.errors import ArtifactError
from svtool.flavor import FLAVORS, Flavor, import_flavor, version
from svtool.profiles import Shapes
from svtool.progress import Progress

if TYPE_CHECKING:
    import onnx_ir as ir

FP16_MIN_SQNR_DB = 30.0  # measured 60 dB and more; below this a pass has broken something
INT8_MIN_SQNR_DB = 3.0  # far below any useful engine: catches ranges of another scale
_MAX_ERRORS = 8


def prepare(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Write `twin` (logits head) and `graph` (head asked for) from the float32 `model`; calibrate first if needed."""
    model_path = Path(payload["model"])
    ranges = _calibration(payload, model_path, progress)
    progress.stage("rewriting the graph")
    model = graphs.load_model(model_path)
    twin = precision.to_fp16(
        model, ranges.absmax if ranges is not None else None, keep_fp32=payload["keep_fp32"]
    )
    quantized: list[str] = []
    if payload["precision"] == "int8":
        assert ranges is not None
        quantized = [linear.name for linear in precision.quantized_linears(twin, payload["exclude"])]
        twin = precision.to_int8(twin, ranges.amax, exclude=payload["exclude"])
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
        "calibration": ranges.to_json() if ranges is not None else None,
        "calibration_digest": ranges.digest if ranges is not None else None,
        "quantized": quantized,
        "expected": {
            name: expected[name] for name in ("QuantizeLinear", "DequantizeLinear", "LayerNormalization")
        },
        "graph_bytes": Path(payload["graph"]).stat().st_size,
    }


def engine(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Build `graph` into `plan` with the library of `flavor`."""
    flavor = FLAVORS[payload["flavor"]]
    return build_plan(import_flavor(flavor), flavor, payload, progress)


def build_plan(trt: Any, flavor: Flavor, payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The one build path of TensorRT 10, TensorRT 11 and TensorRT-RTX; what differs is found by hasattr."""
    profiles: list[Shapes] = payload["profiles"]
    for shapes in profiles:
        check_shapes(shapes)
    messages = _Messages()
    logger = _make_logger(trt, messages)
    try:
        builder = trt.Builder(logger)
    except (TypeError, RuntimeError) as error:  # pybind's answer when the library made no object
        raise ArtifactError(
            f"{flavor.title} cannot start a builder here: {messages.text() or error}"
        ) from error
    network = builder.create_network(_network_flags(trt))
    progress.stage("parsing the graph")
    _parse(trt, flavor, network, logger, Path(payload["graph"]), messages)
    requested = requested_precision(network)
    _check_requested(requested, payload["expected"])
    config = builder.create_builder_config()
    if payload["workspace_mb"]:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, payload["workspace_mb"] << 20)
    for shapes in profiles:
        add_profile(builder, config, network, shapes)
    _watch(trt, config, progress)
    progress.stage("building the plan", payload["estimate_s"])
    plan = builder.build_serialized_network(network, config)
    if plan is None or plan.nbytes == 0:
        raise ArtifactError(_failure(flavor, payload, messages))
    Path(payload["plan"]).write_bytes(plan)
    return {
        "library": flavor.runtime,
        "library_version": version(trt),
        "requested": requested,
        "warnings": messages.warnings[:_MAX_ERRORS],
    }


def check_shapes(shapes: Shapes) -> None:
    """Refuse what TensorRT accepts in silence: a missing input, or min <= opt <= max broken."""
    missing = [name for name in graphs.INPUTS if name not in shapes]
    if missing:
        raise ArtifactError(
            f"an optimization profile lacks the inputs {', '.join(missing)}: it must cover all four"
        )
    for name, (least, usual, most) in shapes.items():
        ordered = all(1 <= a <= b <= c for a, b, c in zip(least, usual, most, strict=True))
        if not ordered:
            raise ArtifactError(
                f"the optimization profile of {name} is min {list(least)}, opt {list(usual)}, max {list(most)}: "
                "every size needs 1 <= min <= opt <= max"
            )


def add_profile(builder: Any, config: Any, network: Any, shapes: Shapes) -> None:
    profile = builder.create_optimization_profile()
    inputs = [network.get_input(index).name for index in range(network.num_inputs)]
    if sorted(inputs) != sorted(shapes):
        raise ArtifactError(f"the network has the inputs {inputs}, the profile {sorted(shapes)}")
    for name in inputs:
        profile.set_shape(name, *(tuple(shape) for shape in shapes[name]))  # returns nothing and never raises
    if not bool(profile) or config.add_optimization_profile(profile) < 0:
        raise ArtifactError(
            f"the optimization profile is not valid: {dict(shapes)}: choose another --profile B:SECONDS"
        )


def requested_precision(network: Any) -> dict[str, dict[str, int]]:
    """Layer types and output types of the parsed network: what was asked for, not what a GPU will run."""
    counts: dict[str, Counter[str]] = {}
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        kind = counts.setdefault(_word(layer.type), Counter())
        kind[_word(layer.get_output(0).dtype)] += 1
    return {kind: dict(sorted(types.items())) for kind, types in sorted(counts.items())}


def _calibration(
    payload: Mapping[str, Any], model_path: Path, progress: Progress
) -> calibration.Calibration | None:
    job = payload["calibration"]
    if job is None:
        return None
    digest = payload["onnx_digest"]
    if job["list"] is None:
        return calibration.load_cache(Path(job["cache"]), digest)
    from svtool.assets import find_assets
    from svtool.utterances import read_utterances

    assets = find_assets(job["assets"])
    utterances = read_utterances(job["list"])
    settings = calibration.frontend_settings(assets.cmvn)
    made = calibration.calibrate(
        model_path,
        calibration.read_samples(utterances, assets, max_seconds=job["max_seconds"]),
        method=job["method"],
        percentile=job["percentile"],
        list_name=job["name"],
        list_digest=utterances.digest,
        frontend=settings,
        multilingual=assets.name != "tiny",
        threads=payload["threads"],
        progress=progress,
        total=len(utterances.utterances),
    )
    calibration.save_cache(Path(job["write"]), made)
    return made


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
    least = INT8_MIN_SQNR_DB if payload["precision"] == "int8" else FP16_MIN_SQNR_DB
    if measured.sqnr_db < least:
        source = f" with the calibration on {ranges.list_name or 'a cache'}" if ranges is not None else ""
        raise ArtifactError(
            f"the {payload['precision']} graph{source} does not resemble {payload['model']}: {measured.sqnr_db:.1f} dB "
            f"against at least {least:g} dB; calibrate on other audio with  svtool build-trt --int8 --data LIST"
        )


class _Messages:
    """What the library says while it works; errors are all kept."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.warnings: list[str] = []

    def text(self) -> str:
        kept = list(dict.fromkeys(self.errors))
        more = f" (and {len(kept) - _MAX_ERRORS} more)" if len(kept) > _MAX_ERRORS else ""
        return "; ".join(kept[-_MAX_ERRORS:]) + more


def _make_logger(trt: Any, messages: _Messages) -> Any:
    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR):
                messages.errors.append(msg.strip())
            elif severity == trt.ILogger.WARNING:
                messages.warnings.append(msg.strip())

    return Log()


def _network_flags(trt: Any) -> int:
    """Strong typing is a flag in TensorRT 10 and the only mode elsewhere."""
    flags = getattr(trt, "NetworkDefinitionCreationFlag", None)
    return 1 << int(flags.STRONGLY_TYPED) if flags is not None and hasattr(flags, "STRONGLY_TYPED") else 0


def _parse(trt: Any, flavor: Flavor, network: Any, logger: Any, graph: Path, messages: _Messages) -> None:
    parser = trt.OnnxParser(network, logger)
    if parser.parse_from_file(str(graph)):
        return
    found = [str(parser.get_error(index)) for index in range(parser.num_errors)] or [messages.text()]
    raise ArtifactError(f"{flavor.title} {version(trt)} cannot read the graph: {'; '.join(found)}")


def _check_requested(requested: Mapping[str, Mapping[str, int]], expected: Mapping[str, int]) -> None:
    for layer, op in (("QUANTIZE", "QuantizeLinear"), ("DEQUANTIZE", "DequantizeLinear")):
        found = sum(requested.get(layer, {}).values())
        if found < expected[op]:
            raise ArtifactError(
                f"the parsed network has {found} {layer} layers, the graph {expected[op]}: not built"
            )


def _watch(trt: Any, config: Any, progress: Progress) -> None:
    """Forward the builder's own progress where the library reports any."""
    if not hasattr(trt, "IProgressMonitor") or not hasattr(config, "progress_monitor"):
        return

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            if parent_phase is None:
                progress.note(f"{phase_name} ({num_steps} steps)")

        def phase_finish(self, phase_name: str) -> None: ...

        def step_complete(self, phase_name: str, step: int) -> bool:
            return True  # the parent ends the whole process instead

    monitor = Monitor()
    config.progress_monitor = monitor
    _KEPT.append(monitor)  # the library keeps no reference that Python counts


_KEPT: list[Any] = []


def _failure(flavor: Flavor, payload: Mapping[str, Any], messages: _Messages) -> str:
    workspace = f"{payload['workspace_mb']} MB" if payload["workspace_mb"] else "the library's own limit"
    return (
        f"{flavor.title} could not build the plan (workspace {workspace}; profiles {payload['profile_text']}): "
        f"{messages.text() or 'it gave no reason'}. "
        "Try a larger --workspace-mb, or fewer seconds or a smaller batch in --profile B:SECONDS"
    )


def _word(value: Any) -> str:
    return str(getattr(value, "name", value)).rsplit(".", 1)[-1]
