"""`svtool build-trt`: a model and a precision in, a plan, its ONNX twin and their manifests out, or nothing.

Decides what is built, from which calibration and with which profiles; the long work runs in child processes
(`build_worker`), so that Ctrl-C ends it at once. Knows nothing of how an engine is run.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from svtool import manifest
from svtool.build_ranges import Ranges, cache_of, find_ranges, refuse_bad
from svtool.build_report import BuildReport
from svtool.build_search import Budget, Searched, find_map, overlap_warning
from svtool.calibration import read_cache, save_cache
from svtool.child import Finished, run_child
from svtool.config import Config, GateConfig, Profile, load_config
from svtool.errors import ArtifactError, SvtoolError, UsageError
from svtool.flavor import (
    CLASSIC,
    Flavor,
    choose_flavor,
    compute_capability,
    has_cuda_device,
    import_flavor,
)
from svtool.parity import INT8_TRUE_FROM
from svtool.plan import known_targets
from svtool.profiles import activation_bytes, check_profiles, megabytes, profile_shapes
from svtool.progress import Progress, Silent
from svtool.source import Source, read_source
from svtool.staging import staging
from svtool.tiny import hardest_part
from svtool.verify import verify
from svtool.wer.checks import GateOptions

PRECISIONS = ("fp16", "int8", "int8-weights")
HEADS = ("greedy", "logits")
TINY_DRIFT = "tiny:drift"
POOR_INT8_DB = 20.0  # the embedded model reaches 33, a random one of full size 29
_LIBRARIES = ("onnx", "onnx-ir", "onnxruntime-gpu", "onnxruntime", "numpy")


@dataclass(frozen=True)
class SearchOptions:
    """A budget and what it is measured on. Limits left None come from the model's config."""

    drift: float  # points
    data: str | None = None  # utterance list with reference texts
    max_disagreement: float | None = None  # percent
    min_sqnr_db: float | None = None
    limit: int | None = None  # use this many utterances, spread evenly
    seed: int = 0  # of the bootstrap


@dataclass(frozen=True)
class BuildOptions:
    precision: str = "fp16"
    output: Path | None = None  # default: <DIR>/<precision>.plan
    data: str | None = None  # utterance list to calibrate on
    calibration: Path | None = None  # finished cache
    head: str = "greedy"
    profiles: tuple[Profile, ...] = ()  # default: the config's
    keep_fp16: tuple[str, ...] = ()  # patterns of layers that stay out of int8, beside the config's
    budget: SearchOptions | None = None  # asks for a precision search
    workspace_mb: int | None = None
    optimization_level: int | None = None  # of the builder, 0 to 5; None: the library's own
    compute_capability: tuple[str, ...] = ()  # TensorRT-RTX: "8.9"; empty: all that it is portable over
    timing_cache: Path | None = None  # TensorRT: read and written again
    flavor: str = "auto"
    threads: int | None = None
    config: Path | None = None  # TOML; None: the defaults
    settings: Config = field(default_factory=Config)  # what `config` holds, filled in by `build`


@dataclass
class _Notes:
    """Warnings that go to the person and into the report."""

    progress: Progress
    warnings: list[str] = field(default_factory=list)

    def warn(self, message: str) -> None:
        self.warnings.append(message)
        self.progress.note(f"warning: {message}")


def build(model_path: Path, options: BuildOptions, progress: Progress | None = None) -> BuildReport:
    """Build one engine. On any exception, KeyboardInterrupt included, no file is left behind."""
    notes = _Notes(progress or Silent())
    if options.config is not None:
        options = replace(options, settings=load_config(options.config))
    path = model_path / "model.onnx" if model_path.is_dir() else model_path
    plan, twin = _outputs(path, options)
    _check_options(options)
    flavor = choose_flavor(options.flavor)
    _check_flavor(options, flavor)
    keep = (*options.settings.precision.exclude, *options.keep_fp16)
    source = read_source(path, options.head, keep=keep)
    gc.collect()  # graphs are full of cycles: the weights read for the digest would stay while the children work
    profiles = options.profiles or options.settings.engine.profiles
    estimates = check_profiles(source, profiles, options.head, notes.progress.note, notes.warn)
    if apart := source.apart(plan.parent):
        notes.warn(apart)
    budget = _budget(source, options) if options.budget is not None else None
    ranges = find_ranges(
        source,
        options.settings.calibration,
        data=options.data,
        calibration=options.calibration,
        needed=options.precision == "int8",
        progress=notes.progress,
    )
    with staging(plan.parent, "build") as work:
        job = _Job(source, options, plan, work, notes)
        cache = job.calibrated(ranges) if ranges is not None else None
        searched = job.search(budget, cache) if budget is not None and cache is not None else None
        prepared = searched.prepared if searched is not None else job.prepare(cache)
        _note_likeness(options, prepared.value["parity"], notes)
        built = _build_engine(source, flavor, options, profiles, prepared, work, notes)
        manifests = _manifests(source, flavor, options, profiles, prepared, built, twin, searched)
        _publish(work, plan, twin, manifests)
        verified = _verified(plan, twin, options, notes) if has_cuda_device() else None
        job.journal.unlink(missing_ok=True)
    return BuildReport(
        plan=plan,
        twin=twin,
        precision=options.precision,
        head=options.head,
        library=built.value["library"],
        library_version=built.value["library_version"],
        compute_capability=_targets(flavor, options),
        profiles=tuple(str(profile) for profile in profiles),
        estimated_bytes=estimates,
        plan_bytes=plan.stat().st_size,
        twin_bytes=twin.stat().st_size,
        parity=prepared.value["parity"],
        quantized_layers=len(prepared.value["quantized"]),
        int8_share=prepared.value["int8_share"],
        calibration=ranges.described if ranges is not None else None,
        seconds={"graph": round(prepared.wall_s, 2), "plan": round(built.wall_s, 2)},
        peak_rss_bytes={"graph": prepared.peak_rss_bytes, "plan": built.peak_rss_bytes},
        requested=built.value["requested"],
        search=searched.found if searched is not None else None,
        verified_on=verified,
        warnings=tuple(notes.warnings),
    )


def _verified(plan: Path, twin: Path, options: BuildOptions, notes: _Notes) -> str | None:
    """Run the engine at the corners of its profiles. Returns the GPU's name; None when it is not for this machine.

    Raises ArtifactError, and keeps nothing, when the engine runs and is wrong.
    """
    try:
        report = verify(plan, threads=options.threads, progress=notes.progress)
    except SvtoolError as error:
        notes.warn(f"the plan stands, but it was not run: {error}")
        return None
    failures = [f"{one.name}: {one.failure}" for one in report.results if one.failure]
    if not failures:
        return report.gpu
    for path in (plan, twin):
        path.unlink(missing_ok=True)
        manifest.manifest_path(path).unlink(missing_ok=True)
    raise ArtifactError(
        f"{plan} was built, but on {report.gpu} it is wrong in {len(failures)} of {len(report.results)} cases "
        f"({failures[0]}), so it was not kept: build again with other layers out of int8 (--keep-fp16), with --fp16, "
        "or with another version of the library"
    )


class _Job:
    """One build in its staging folder: the steps that run before the plan itself is built."""

    def __init__(self, source: Source, options: BuildOptions, plan: Path, work: Path, notes: _Notes) -> None:
        self._source = source
        self._options = options
        self._work = work
        self._notes = notes
        self.journal = plan.with_suffix(".search.json")

    def calibrated(self, ranges: Ranges) -> Path:
        cache = cache_of(
            ranges,
            self._source,
            self._options.settings.calibration,
            work=self._work,
            threads=self._options.threads,
            progress=self._notes.progress,
        )
        made = read_cache(cache)
        refuse_bad(made, ranges)
        if ranges.keep_as is not None:  # at once: the build after it may be stopped
            save_cache(ranges.keep_as, made)
        self._notes.warnings += made.warnings  # said aloud when the ranges were measured
        return cache

    def prepare(self, cache: Path | None, layers: Sequence[str] | None = None) -> Finished:
        """Make the twin and the graph. `layers`: exact names to quantize; None: all that are not pinned."""
        options, source = self._options, self._source
        if layers is None and options.precision != "fp16":
            layers = [name for group in source.groups for name in group.layers]
        payload = {
            "model": str(source.path),
            "onnx_digest": source.digest,
            "precision": options.precision,
            "head": options.head,
            "tag_ids": list(source.tag_ids),
            "layers": list(layers or ()),
            "keep_fp32": list(options.settings.precision.keep_fp32),
            "cache": str(cache) if cache else None,
            "twin": str(self._work / "twin.onnx"),
            "graph": str(self._work / "graph.onnx"),
            "threads": options.threads,
        }
        done = run_child("build_worker:prepare", payload, self._notes.progress)
        _note_runtime(done.value, self._notes)
        return done

    def search(self, budget: Budget, cache: Path) -> Searched:
        if said := overlap_warning(budget, cache, self._notes.progress):
            self._notes.warn(said)
        return find_map(
            self._source,
            budget,
            cache=cache,
            twin=self._work / "twin.onnx",
            work=self._work,
            journal=self.journal,
            prepare=lambda layers: self.prepare(cache, layers),
            threads=self._options.threads,
            progress=self._notes.progress,
        )


def _outputs(path: Path, options: BuildOptions) -> tuple[Path, Path]:
    if options.precision not in PRECISIONS or options.head not in HEADS:
        raise UsageError(
            f"precision {options.precision!r} with head {options.head!r}: "
            "choose fp16, int8 or int8-weights, greedy or logits"
        )
    plan = options.output or path.parent / f"{options.precision}.plan"
    if plan.suffix != ".plan":
        raise UsageError(f"the output {plan} does not end in .plan")
    twin = plan.with_suffix(".onnx")
    if twin.resolve() == path.resolve():
        raise UsageError(f"the twin of {plan} would replace {path}: choose another name with -o")
    if twin.exists() and not _is_twin(twin):
        raise UsageError(
            f"{twin} would be replaced by the twin of {plan.name}, and it is no twin of a plan: "
            "choose another name with -o"
        )
    return plan, twin


def _is_twin(path: Path) -> bool:
    """What an earlier build put there; engines of build-ort name the provider they are for."""
    if not manifest.manifest_path(path).is_file():
        return False
    described = manifest.read_manifest(path)
    return described.get("kind") == "engine" and "provider" not in described


def _check_options(options: BuildOptions) -> None:
    if options.data and options.calibration:
        raise UsageError(
            "--data and --calibration exclude each other: a cache already holds the ranges of a list"
        )
    if options.budget is not None and options.precision == "int8-weights":
        raise UsageError(
            "--weight-only and --drift-budget exclude each other: a search chooses layers for full int8"
        )
    if options.budget is not None and options.precision != "int8":
        raise UsageError("--drift-budget searches for int8 layers: give it with --int8")
    if options.keep_fp16 and options.precision == "fp16":
        raise UsageError("--keep-fp16 keeps layers out of int8: give it with --int8")


def _check_flavor(options: BuildOptions, flavor: Flavor) -> None:
    if flavor is CLASSIC and options.compute_capability:
        raise UsageError(
            "--compute-capability is for TensorRT-RTX: TensorRT builds for the GPU at hand, so build there"
        )
    if options.compute_capability:
        known = known_targets(import_flavor(flavor))
        if unknown := [one for one in options.compute_capability if one not in known]:
            raise UsageError(
                f"{flavor.title} cannot build for compute capability {', '.join(unknown)}: "
                f"it knows {', '.join(sorted(known, key=float))}"
            )
    if flavor is not CLASSIC and options.timing_cache is not None:
        raise UsageError("--timing-cache is for TensorRT: TensorRT-RTX measures no kernels while it builds")


def _budget(source: Source, options: BuildOptions) -> Budget:
    """The limits asked for, else those of the model's config."""
    asked = options.budget
    assert asked is not None
    data = asked.data or (TINY_DRIFT if source.is_tiny else None)
    if data is None:
        raise UsageError(
            "--drift-budget needs speech with reference texts to measure on: name an utterance list with "
            "--drift-data LIST (another one than the calibration list)"
        )
    settings = options.settings
    known = settings.gate_tiny if source.is_tiny else settings.gate
    limits = GateConfig(
        asked.drift,
        known.max_disagreement if asked.max_disagreement is None else asked.max_disagreement,
        known.min_sqnr_db if asked.min_sqnr_db is None else asked.min_sqnr_db,
    )
    # a limit that means nothing is refused before hours of measuring
    GateOptions(
        budget=limits.drift_budget,
        max_disagreement=limits.max_disagreement,
        min_sqnr_db=limits.min_sqnr_db,
    )
    return Budget(limits, data, hardest_part(data), asked.limit, asked.seed)


def _targets(flavor: Flavor, options: BuildOptions) -> str | None:
    if flavor is CLASSIC:
        return compute_capability()
    return ", ".join(options.compute_capability) or "portable"


def _build_engine(
    source: Source,
    flavor: Flavor,
    options: BuildOptions,
    profiles: tuple[Profile, ...],
    prepared: Finished,
    work: Path,
    notes: _Notes,
) -> Finished:
    estimate_s = _build_seconds(source, len(profiles))
    memory = (600 << 20) + int(4.5 * prepared.value["graph_bytes"])
    notes.progress.note(
        f"building with {flavor.title}: about {estimate_s:.0f} s and {megabytes(memory)} of host memory"
    )
    text = ", ".join(str(profile) for profile in profiles)
    payload = {
        "graph": str(work / "graph.onnx"),
        "plan": str(work / "engine.plan"),
        "flavor": flavor.name,
        "profiles": [profile_shapes(profile) for profile in profiles],
        "profile_text": text,
        "workspace_mb": options.workspace_mb or options.settings.engine.workspace_mb,
        "optimization_level": options.optimization_level,
        "compute_capability": list(options.compute_capability),
        "timing_cache": str(options.timing_cache) if options.timing_cache else None,
        "expected": prepared.value["expected"],
        "estimate_s": estimate_s,
    }
    return run_child("plan:engine", payload, notes.progress, tick=_Clock(notes.progress, estimate_s).tick)


class _Clock:
    """Elapsed time against the estimate: the builder's own reports stop for most of a long build."""

    def __init__(self, progress: Progress, estimate_s: float) -> None:
        self._progress = progress
        self._estimate_s = estimate_s
        self._shown_s = 0.0

    def tick(self, elapsed_s: float) -> None:
        shown = min(elapsed_s, 0.98 * self._estimate_s)
        if shown - self._shown_s >= 0.5:
            self._progress.advance(round(shown - self._shown_s, 1))
            self._shown_s = shown


def _build_seconds(source: Source, profiles: int) -> float:
    """From builds of 234 M parameters on two cores: 51 s with one profile, 80 % more for each further one."""
    return 3.0 + 48.0 * source.parameters / 234e6 * (1 + 0.8 * (profiles - 1))


def _note_likeness(options: BuildOptions, parity: Mapping[str, Any], notes: _Notes) -> None:
    likeness = parity["sqnr_db"]
    if options.precision == "int8" and likeness is not None and likeness < POOR_INT8_DB:
        notes.warn(
            f"the int8 graph resembles float32 poorly ({likeness:.1f} dB on random features): measure what it costs "
            "with  svtool validate-wer  before you serve it"
        )


def _note_runtime(prepared: Mapping[str, Any], notes: _Notes) -> None:
    here = str(prepared["parity"]["onnxruntime"])
    numbers = tuple(int(part) for part in here.split(".")[:2] if part.isdigit())
    if prepared["quantized"] and numbers < INT8_TRUE_FROM:
        least = ".".join(str(number) for number in INT8_TRUE_FROM)
        notes.warn(f"onnxruntime {here} scores int8 twins wrongly: read their figures only from {least} on")


def _manifests(
    source: Source,
    flavor: Flavor,
    options: BuildOptions,
    profiles: tuple[Profile, ...],
    prepared: Finished,
    built: Finished,
    twin: Path,
    searched: Searched | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of the plan and of its twin."""
    done = prepared.value
    shared: dict[str, Any] = {
        "kind": "engine",
        "precision": options.precision,
        "source": source.manifest.get("source", {}),
        "model": source.path.name,
        "onnx_digest": source.digest,
        "tag_ids": list(source.tag_ids),
        "vocab_size": source.vocabulary,
        "parity": done["parity"],
        "precision_map": done["precision_map"],
        "int8_share": round(done["int8_share"], 4),
        "pinned": list(source.pinned),
        "calibration": done["calibration"],
        "search": searched.facts if searched is not None else None,
        "verified_on_gpu": False,
    }
    one = shared | {
        "runtime": "onnxruntime",
        "head": "logits",
        "max_frames": source.max_frames,
        "options": {"precision": options.precision},
        "built_with": manifest.versions(*_LIBRARIES),
    }
    two = shared | {
        "runtime": flavor.runtime,
        "head": options.head,
        "max_frames": max(profile.frames for profile in profiles),
        "options": {
            "workspace_mb": options.workspace_mb,
            "optimization_level": options.optimization_level,
            "head": options.head,
            "flavor": flavor.name,
        },
        "built_with": manifest.versions(*_LIBRARIES) | {flavor.runtime: built.value["library_version"]},
        "compute_capability": _targets(flavor, options),
        "profiles": [
            {
                "batch": profile.batch,
                "seconds": profile.seconds,
                "estimated_bytes": activation_bytes(source, profile, options.head),
                "shapes": profile_shapes(profile),
            }
            for profile in profiles
        ],
        "requested_precision": built.value["requested"],
        "builder_warnings": built.value["warnings"],
        "build": {"seconds": round(built.wall_s, 2), "peak_rss_bytes": built.peak_rss_bytes},
        "twin": twin.name,
    }
    return two, one


def _publish(
    work: Path,
    plan: Path,
    twin: Path,
    manifests: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    """Rename everything into place; an artifact without its manifest counts as absent, so manifests go last."""
    of_plan, of_twin = manifests
    of_plan["twin_sha256"] = manifest.sha256_file(work / "twin.onnx")
    for artifact in (plan, twin):
        manifest.manifest_path(artifact).unlink(missing_ok=True)
    try:
        (work / "twin.onnx").replace(twin)
        (work / "engine.plan").replace(plan)
        manifest.write_manifest(twin, of_twin)
        manifest.write_manifest(plan, of_plan)
    except BaseException:
        for path in (plan, twin):
            path.unlink(missing_ok=True)
            manifest.manifest_path(path).unlink(missing_ok=True)
        raise
