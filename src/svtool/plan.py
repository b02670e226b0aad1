"""The second half of a build, run in a child process: one graph becomes one plan, by whichever TensorRT is named.

The payload and the result are plain JSON values. Knows nothing of manifests, precision passes or calibration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from svtool import graph as graphs
from svtool import manifest
from svtool.errors import ArtifactError
from svtool.flavor import FLAVORS, Flavor, import_flavor, version
from svtool.profiles import Shapes
from svtool.progress import Progress

_MAX_ERRORS = 8


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
    check_requested(requested, int8_products(network), payload["expected"])
    config = builder.create_builder_config()
    _configure(trt, flavor, config, payload)
    cache = _attach_timing_cache(flavor, config, payload)
    for shapes in profiles:
        add_profile(builder, config, network, shapes)
    _watch(trt, config, progress)
    progress.stage("building the plan", payload["estimate_s"])
    plan = builder.build_serialized_network(network, config)
    if plan is None or plan.nbytes == 0:
        raise ArtifactError(_failure(trt, flavor, payload, messages))
    Path(payload["plan"]).write_bytes(plan)
    if cache is not None:
        with manifest.whole_file(Path(payload["timing_cache"])) as work:
            work.write_bytes(config.get_timing_cache().serialize())
    return {
        "library": flavor.runtime,
        "library_version": version(trt),
        "requested": requested,
        "int8_products": int8_products(network),
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


def int8_products(network: Any) -> dict[str, int]:
    """Matrix products of the parsed network by int8 operands: `both`, or the `weights` alone."""
    made_by = {}
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    for layer in layers:
        for index in range(layer.num_outputs):
            made_by[layer.get_output(index).name] = layer
    counts = {"both": 0, "weights": 0}
    for layer in layers:
        if _word(layer.type) == "MATRIX_MULTIPLY" and _dequantized(layer.get_input(1), made_by):
            counts["both" if _dequantized(layer.get_input(0), made_by) else "weights"] += 1
    return counts


def _dequantized(tensor: Any, made_by: Mapping[str, Any]) -> bool:
    layer = made_by.get(tensor.name) if tensor is not None else None
    while layer is not None and _word(layer.type) in ("SHUFFLE", "CAST"):
        source = layer.get_input(0)
        layer = made_by.get(source.name) if source is not None else None
    return layer is not None and _word(layer.type) == "DEQUANTIZE"


def check_requested(
    requested: Mapping[str, Mapping[str, int]], products: Mapping[str, int], expected: Mapping[str, int]
) -> None:
    """Raise ArtifactError when the parser dropped anything that the graph asks for."""
    for layer, op in (("QUANTIZE", "QuantizeLinear"), ("DEQUANTIZE", "DequantizeLinear")):
        found = sum(requested.get(layer, {}).values())
        if found < expected[op]:
            raise ArtifactError(
                f"the parsed network has {found} {layer} layers, the graph {expected[op]}: not built"
            )
    for kind, words in (("both", "int8"), ("weights", "int8 weights")):
        if products[kind] < expected[kind]:
            raise ArtifactError(
                f"the parsed network multiplies {products[kind]} layers in {words}, "
                f"the precision map has {expected[kind]}: not built"
            )


def _configure(trt: Any, flavor: Flavor, config: Any, payload: Mapping[str, Any]) -> None:
    if payload["workspace_mb"]:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, payload["workspace_mb"] << 20)
    level = payload.get("optimization_level")
    if level is not None:
        if not hasattr(config, "builder_optimization_level"):
            raise ArtifactError(f"{flavor.title} {version(trt)} has no --optimization-level: leave it out")
        config.builder_optimization_level = level
    targets = payload.get("compute_capability") or ()
    if targets:
        _set_targets(trt, flavor, config, targets)


def known_targets(trt: Any) -> dict[str, Any]:
    """`8.9` -> SM89, for every machine that this library builds for; empty where it builds for the one at hand."""
    kinds = getattr(trt, "ComputeCapability", None)
    names = [name for name in dir(kinds) if name.startswith("SM") and name[2:].isdigit()]
    return {f"{name[2:-1]}.{name[-1]}": getattr(kinds, name) for name in names}


def _set_targets(trt: Any, flavor: Flavor, config: Any, targets: Sequence[str]) -> None:
    known = known_targets(trt)
    config.num_compute_capabilities = len(targets)
    for index, target in enumerate(targets):
        if not config.set_compute_capability(known[target], index):
            raise ArtifactError(f"{flavor.title} {version(trt)} refuses compute capability {target}")


def _attach_timing_cache(flavor: Flavor, config: Any, payload: Mapping[str, Any]) -> Any:
    """Measured kernel times of earlier builds on this GPU; a cache of another GPU or version is refused."""
    path = payload.get("timing_cache")
    if path is None:
        return None
    known = Path(path).read_bytes() if Path(path).is_file() else b""
    cache = config.create_timing_cache(known)
    if cache is None or not config.set_timing_cache(cache, False):
        raise ArtifactError(
            f"{flavor.title} does not accept the timing cache {path} (another GPU or version?): "
            "name a new file with --timing-cache"
        )
    return cache


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


def _failure(trt: Any, flavor: Flavor, payload: Mapping[str, Any], messages: _Messages) -> str:
    workspace = f"{payload['workspace_mb']} MB" if payload["workspace_mb"] else "the library's own limit"
    return (
        f"{flavor.title} {version(trt)} could not build the plan (workspace {workspace}; profiles "
        f"{payload['profile_text']}): {messages.text() or 'it gave no reason'}. "
        "Try a larger --workspace-mb, fewer seconds or a smaller batch in --profile B:SECONDS, or another version of "
        "the library; the same model runs in ONNX Runtime with  svtool build-ort"
    )


def _word(value: Any) -> str:
    return str(getattr(value, "name", value)).rsplit(".", 1)[-1]
