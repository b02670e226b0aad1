"""`svtool build-trt`: a model and a precision in, a plan, its ONNX twin and their manifests out, or nothing.

Decides what is built, from which calibration and with which profiles; the long work runs in child processes
(`build_worker`), so that Ctrl-C ends it at once. Knows nothing of how an engine is run.
"""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svtool import manifest
from svtool.calibration import frontend_settings, load_cache
from svtool.child import Finished, run_child
from svtool.config import Config, Profile, load_config
from svtool.errors import ArtifactError, SvtoolError, UsageError
from svtool.flavor import CLASSIC, Flavor, choose_flavor, compute_capability
from svtool.parity import INT8_TRUE_FROM
from svtool.profiles import activation_bytes, check_profiles, megabytes, profile_shapes
from svtool.progress import Progress, Silent
from svtool.source import Source, read_source

if TYPE_CHECKING:
    from rich.console import RenderableType

PRECISIONS = ("fp16", "int8")
HEADS = ("greedy", "logits")
TINY = "tiny"
TINY_LIST = "tiny:calibration"
COMMITTED = Path("calibration")  # caches kept in the repository, looked up by digest
_LIBRARIES = ("onnx", "onnx-ir", "onnxruntime-gpu", "onnxruntime", "numpy")


@dataclass(frozen=True)
class BuildOptions:
    precision: str = "fp16"
    output: Path | None = None  # default: <DIR>/<precision>.plan
    data: str | None = None  # utterance list to calibrate on
    calibration: Path | None = None  # finished cache
    head: str = "greedy"
    profiles: tuple[Profile, ...] = ()  # default: the config's
    workspace_mb: int | None = None
    flavor: str = "auto"
    threads: int | None = None
    config: Path | None = None  # TOML; None: the defaults
    settings: Config = field(default_factory=Config)  # what `config` holds, filled in by `build`


@dataclass(frozen=True)
class BuildReport:
    plan: Path
    twin: Path
    precision: str
    head: str
    library: str
    library_version: str
    profiles: tuple[str, ...]
    estimated_bytes: dict[str, int]  # device memory for activations, per profile
    plan_bytes: int
    twin_bytes: int
    parity: Mapping[str, Any]
    quantized_layers: int
    calibration: str | None  # where the ranges came from
    seconds: dict[str, float]
    peak_rss_bytes: dict[str, int]
    requested: Mapping[str, Mapping[str, int]]
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return (
            {"schema": "svtool.build-trt/1"}
            | self.__dict__
            | {"plan": str(self.plan), "twin": str(self.twin)}
        )


@dataclass(frozen=True)
class Ranges:
    """Where int8 ranges come from: a finished cache, or a list to run now."""

    text: str
    cache: Path | None = None
    list: str | None = None
    keep_as: Path | None = None  # where a new cache goes when the build succeeds


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
    flavor = choose_flavor(options.flavor)
    source = read_source(path, options.head)
    gc.collect()  # graphs are full of cycles: the weights read for the digest would stay while the children work
    profiles = options.profiles or options.settings.engine.profiles
    estimates = check_profiles(source, profiles, options.head, notes.progress.note, notes.warn)
    ranges = _ranges(source, options, notes) if options.precision == "int8" else None
    with _staging(plan.parent) as work:
        prepared = run_child(
            "build_worker:prepare", _prepare_job(source, options, ranges, work), notes.progress
        )
        _note_runtime(prepared.value, notes)
        built = _build_engine(source, flavor, options, profiles, prepared, work, notes)
        _publish(
            work, plan, twin, ranges, _manifests(source, flavor, options, profiles, prepared, built, twin)
        )
    return BuildReport(
        plan=plan,
        twin=twin,
        precision=options.precision,
        head=options.head,
        library=built.value["library"],
        library_version=built.value["library_version"],
        profiles=tuple(str(profile) for profile in profiles),
        estimated_bytes=estimates,
        plan_bytes=plan.stat().st_size,
        twin_bytes=twin.stat().st_size,
        parity=prepared.value["parity"],
        quantized_layers=len(prepared.value["quantized"]),
        calibration=ranges.text if ranges is not None else None,
        seconds={"graph": round(prepared.wall_s, 2), "plan": round(built.wall_s, 2)},
        peak_rss_bytes={"graph": prepared.peak_rss_bytes, "plan": built.peak_rss_bytes},
        requested=built.value["requested"],
        warnings=tuple(notes.warnings),
    )


def render(report: BuildReport) -> RenderableType:
    from rich.table import Table

    table = Table(title=f"{report.plan.name}: {report.precision}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    sqnr = report.parity["sqnr_db"]
    rows = [
        (
            "plan",
            f"{report.plan} ({megabytes(report.plan_bytes)}, {report.library} {report.library_version})",
        ),
        ("twin", f"{report.twin} ({megabytes(report.twin_bytes)}, ONNX, logits head)"),
        (
            "profiles",
            ", ".join(f"{name} (about {megabytes(size)})" for name, size in report.estimated_bytes.items()),
        ),
        ("int8 layers", str(report.quantized_layers)),
        ("calibration", report.calibration or "none needed"),
        (
            "against float32",
            f"{sqnr} dB, {report.parity['argmax_agreement']:.2f} % of frames agree (random features, "
            "not speech: validate-wer measures that)",
        ),
        ("time", ", ".join(f"{name} {seconds:.1f} s" for name, seconds in report.seconds.items())),
        (
            "peak memory",
            ", ".join(f"{name} {megabytes(size)}" for name, size in report.peak_rss_bytes.items()),
        ),
        ("run on a GPU", "not yet"),
    ]
    for name, value in rows:
        table.add_row(name, value)
    return table


def _outputs(path: Path, options: BuildOptions) -> tuple[Path, Path]:
    if options.precision not in PRECISIONS or options.head not in HEADS:
        raise UsageError(
            f"precision {options.precision!r} with head {options.head!r}: choose fp16 or int8, greedy or logits"
        )
    plan = options.output or path.parent / f"{options.precision}.plan"
    if plan.suffix != ".plan":
        raise UsageError(f"the output {plan} does not end in .plan")
    twin = plan.with_suffix(".onnx")
    if twin.resolve() == path.resolve():
        raise UsageError(f"the twin of {plan} would replace {path}: choose another name with -o")
    if options.precision == "fp16" and (options.data or options.calibration):
        raise UsageError("--data and --calibration are for --int8")
    if options.data and options.calibration:
        raise UsageError(
            "--data and --calibration exclude each other: a cache already holds the ranges of a list"
        )
    return plan, twin


def _ranges(source: Source, options: BuildOptions, notes: _Notes) -> Ranges:
    if options.calibration is not None:
        load_cache(options.calibration, source.digest, frontend=_frontend(source))
        return Ranges(str(options.calibration), cache=options.calibration)
    if options.data is not None:
        return _list_ranges(source, options, options.data, notes)
    for path in sorted(COMMITTED.glob("*.json")):
        try:
            load_cache(path, source.digest, frontend=_frontend(source))
        except SvtoolError:
            continue  # of another model: committed caches are looked up by digest, not by name
        return Ranges(str(path), cache=path)
    if source.name == TINY:
        return _list_ranges(source, options, TINY_LIST, notes)
    raise UsageError(
        f"--int8 needs audio to calibrate {source.path} on: name an utterance list with --data LIST "
        "(64 utterances or more, like what the engine will hear) or a finished cache with --calibration"
    )


def _list_ranges(source: Source, options: BuildOptions, spec: str, notes: _Notes) -> Ranges:
    from svtool.utterances import read_utterances

    settings = options.settings.calibration
    name = spec.replace(":", "-") if spec.startswith("tiny:") else Path(spec).stem
    cache = source.path.parent / f"{name}.calibration.json"
    if cache.is_file():
        try:
            load_cache(
                cache,
                source.digest,
                list_digest=read_utterances(spec).digest,
                frontend=_frontend(source),
                method=settings.method,
                percentile=settings.percentile if settings.method == "percentile" else None,
            )
        except ArtifactError as error:
            notes.progress.note(f"calibrating again: {error}")
        else:
            notes.progress.note(f"using the ranges in {cache}: same model, list and settings")
            return Ranges(str(cache), cache=cache)
    return Ranges(spec, list=spec, keep_as=cache)


def _frontend(source: Source) -> dict[str, Any] | None:
    from svtool.assets import CMVN_NAME, find_assets

    if not (source.path.parent / CMVN_NAME).is_file():
        return None
    return frontend_settings(find_assets(str(source.path.parent)).cmvn)


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".svtool-build-", dir=folder))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _prepare_job(source: Source, options: BuildOptions, ranges: Ranges | None, work: Path) -> dict[str, Any]:
    settings = options.settings.calibration
    job = None
    if ranges is not None:
        job = {
            "cache": str(ranges.cache) if ranges.cache else None,
            "list": ranges.list,
            "name": ranges.list,
            "assets": str(source.path.parent),
            "write": str(work / "calibration.json"),
            "method": settings.method,
            "percentile": settings.percentile,
            "max_seconds": settings.max_seconds,
        }
    return {
        "model": str(source.path),
        "onnx_digest": source.digest,
        "precision": options.precision,
        "head": options.head,
        "tag_ids": list(source.tag_ids),
        "exclude": list(options.settings.precision.exclude),
        "keep_fp32": list(options.settings.precision.keep_fp32),
        "calibration": job,
        "twin": str(work / "twin.onnx"),
        "graph": str(work / "graph.onnx"),
        "threads": options.threads,
    }


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


def _note_runtime(prepared: Mapping[str, Any], notes: _Notes) -> None:
    for warning in (prepared["calibration"] or {}).get("warnings", ()):
        notes.warnings.append(warning)
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
        "precision_map": {"int8": done["quantized"], "excluded": list(options.settings.precision.exclude)},
        "calibration": _calibration_facts(done),
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
        "options": {"workspace_mb": options.workspace_mb, "head": options.head, "flavor": flavor.name},
        "built_with": manifest.versions(*_LIBRARIES) | {flavor.runtime: built.value["library_version"]},
        "compute_capability": compute_capability() if flavor is CLASSIC else "portable",
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


def _calibration_facts(done: Mapping[str, Any]) -> dict[str, Any] | None:
    cache = done["calibration"]
    if cache is None:
        return None
    kept = ("list_name", "list_digest", "method", "percentile", "used", "frames", "skipped", "warnings")
    return {"digest": done["calibration_digest"]} | {key: cache[key] for key in kept}


def _publish(
    work: Path,
    plan: Path,
    twin: Path,
    ranges: Ranges | None,
    manifests: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    """Rename everything into place; an artifact without its manifest counts as absent, so manifests go last."""
    of_plan, of_twin = manifests
    of_plan["twin_sha256"] = manifest.sha256_file(work / "twin.onnx")
    for artifact in (plan, twin):
        manifest.manifest_path(artifact).unlink(missing_ok=True)
    if ranges is not None and ranges.keep_as is not None:
        (work / "calibration.json").replace(ranges.keep_as)
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
