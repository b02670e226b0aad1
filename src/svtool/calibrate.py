"""`svtool calibrate`: a model and utterances in, a calibration cache and a report of what it is worth out.

Decides what is run and where the result goes; the long work runs in a child process, so that Ctrl-C ends it at once
and leaves no file. Knows nothing of engines being built.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svtool import calibration, manifest, trtcache
from svtool import graph as graphs
from svtool.build_ranges import TINY_LIST, frontend_of
from svtool.calibration import IMPORTED, SCHEMA, Calibration, counted_reasons
from svtool.child import run_child
from svtool.config import CalibrationConfig, load_config
from svtool.errors import ArtifactError, UsageError, counted
from svtool.precision import FP16_SAFE
from svtool.progress import Progress, Silent
from svtool.source import Source, read_source
from svtool.staging import staging

if TYPE_CHECKING:
    from rich.console import RenderableType

TINY = "tiny"
_LOUDEST = 3


@dataclass(frozen=True)
class Request:
    model: Path
    data: str | None = None  # utterance list; the embedded model has one of its own
    output: Path | None = None  # default: beside the model, named after the list
    method: str | None = None  # None: the config's
    percentile: float | None = None
    smooth: float | None = None
    from_trt_cache: Path | None = None
    to_trt_cache: Path | None = None
    config: Path | None = None
    threads: int | None = None
    force: bool = False


@dataclass(frozen=True)
class Report:
    cache: Path
    model: Path
    calibration: Calibration
    unchanged: bool  # the cache was there already, made from the same inputs
    trt_cache: Path | None = None
    left_out: int = 0  # foreign scales of tensors that are no linear input here
    seconds: float = 0.0
    peak_rss_bytes: int = 0

    @property
    def exit_code(self) -> int:
        """1 where no engine would be built from the ranges."""
        return 1 if self.calibration.bad else 0

    @property
    def loud(self) -> list[tuple[str, float]]:
        """Tensors above what fp16 holds safely, loudest first."""
        every = sorted(self.calibration.absmax.items(), key=lambda one: -one[1])
        return [one for one in every if one[1] > FP16_SAFE]

    def to_json(self) -> dict[str, Any]:
        made = self.calibration
        loudest = sorted(made.absmax.items(), key=lambda one: -one[1])[:_LOUDEST]
        return {
            "schema": "svtool.calibrate/1",
            "cache": str(self.cache),
            "model": str(self.model),
            "unchanged": self.unchanged,
            "digest": made.digest,
            "onnx_digest": made.onnx_digest,
            "list": made.list_name,
            "list_digest": made.list_digest,
            "method": made.method,
            "percentile": made.percentile,
            "smooth": made.smooth,
            "used": made.used,
            "skipped": dict(made.skipped),
            "languages": dict(made.languages),
            "audio_seconds": round(made.seconds, 2),
            "ranges": len(made.amax),
            "sqnr": dict(made.sqnr),
            "fp16": {
                "limit": FP16_SAFE,
                "measured": len(made.absmax),
                "over": len(self.loud),
                "loudest": [{"tensor": name, "absmax": value} for name, value in loudest],
            },
            "warnings": list(made.warnings),
            "trt_cache": str(self.trt_cache) if self.trt_cache else None,
            "left_out": self.left_out,
            "seconds": round(self.seconds, 2),
            "peak_rss_bytes": self.peak_rss_bytes,
        }


def run(request: Request, progress: Progress | None = None) -> Report:
    """Make one cache, or say that it is there. On any exception, KeyboardInterrupt included, no file is left."""
    progress = progress or Silent()
    settings = _settings(request)
    path = request.model / "model.onnx" if request.model.is_dir() else request.model
    source = read_source(path)
    scales, left_out = _scales(request, path)
    spec = request.data or _default_list(source, request)
    cache = _outputs(request, path, spec)
    wanted = _Wanted(source, settings, spec, scales)
    if not request.force and (found := _usable(cache, wanted, progress)) is not None:
        progress.note(f"{cache} is there already: same model, list and settings (--force makes it again)")
        return _with_text(Report(cache, path, found, True, left_out=left_out), request)
    made, seconds, peak = _made(wanted, request, progress)
    if left_out:
        note = f"the scales of {counted(left_out, 'tensor')} that no linear layer of this model reads were left out"
        made = replace(made, warnings=(*made.warnings, note))
    calibration.save_cache(cache, made)
    report = Report(cache, path, made, False, left_out=left_out, seconds=seconds, peak_rss_bytes=peak)
    return _with_text(report, request)


def work(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The child's side of `run`. `warn` (default True): say the warnings aloud too, not only in the cache."""
    write = Path(payload["write"])
    with _temporary_files_in(write.parent):
        made = calibration.calibrate_list(
            Path(payload["model"]), payload["job"], threads=payload["threads"], progress=progress
        )
    for warning in made.warnings if payload.get("warn", True) else ():
        progress.note(f"warning: {warning}")
    calibration.save_cache(write, made)
    return {}


@contextlib.contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """A killed child removes nothing: what it leaves lies where its parent clears up."""
    before = tempfile.tempdir
    tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


def render(report: Report) -> RenderableType:
    from rich.table import Table

    made = report.calibration
    table = Table(title=f"{report.cache}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    for name, value in _rows(report, made):
        table.add_row(name, value)
    return table


def _rows(report: Report, made: Calibration) -> list[tuple[str, str]]:
    rows = [
        ("model", str(report.model)),
        ("state", "as before, nothing was run" if report.unchanged else f"made in {report.seconds:.1f} s"),
        ("method", _method(made)),
        ("utterances", _used(made)),
        ("languages", ", ".join(f"{count} {name}" for name, count in made.languages.items()) or "none"),
        (
            "ranges",
            f"{counted(len(made.amax), 'linear input')} for int8, {counted(len(made.absmax), 'tensor')} for fp16",
        ),
        *_sqnr_rows(made),
        ("fp16", _fp16(report, made)),
    ]
    if report.trt_cache is not None:
        rows.append(("text cache", str(report.trt_cache)))
    return rows + [("warning", warning) for warning in made.warnings]


def _method(made: Calibration) -> str:
    name = f"{made.method} {made.percentile:g}" if made.percentile is not None else made.method
    return f"{name}, smoothed by {made.smooth:g}" if made.smooth else name


def _used(made: Calibration) -> str:
    if not made.used:
        return "none"
    skipped = counted_reasons(made.skipped, made.max_seconds)
    return f"{made.used} used, {made.seconds:.1f} s of audio; skipped: {skipped or 'none'}"


def _sqnr_rows(made: Calibration) -> list[tuple[str, str]]:
    sqnr = made.sqnr
    if not sqnr:
        return [("int8 costs", "not measured: no audio")]
    over = counted(sqnr["utterances"], "utterance")
    rows = [
        ("int8, all layers", f"{_db(sqnr['db'])} over {over}{', BAD' if made.bad else ''}"),
        ("  by max ranges", _db(sqnr["max_db"])),
    ]
    return rows + [(f"  {name} alone", _db(value)) for name, value in sqnr["groups"].items()]


def _db(value: float | None) -> str:
    return "exact" if value is None else f"{value:.1f} dB"


def _fp16(report: Report, made: Calibration) -> str:
    if not made.absmax:
        return "not measured: the residual stream stays float32"
    name, value = max(made.absmax.items(), key=lambda one: one[1])
    if not report.loud:
        return f"every tensor fits; the loudest is {name} at {value:.4g}"
    shown = ", ".join(f"{name} at {value:.4g}" for name, value in report.loud[:_LOUDEST])
    stays = "stays" if len(report.loud) == 1 else "stay"
    return f"{counted(len(report.loud), 'tensor')} above {FP16_SAFE:g} {stays} float32: {shown}"


@dataclass(frozen=True)
class _Wanted:
    source: Source
    settings: CalibrationConfig
    list: str | None
    scales: Mapping[str, float] | None

    @property
    def method(self) -> str:
        return self.settings.method if self.scales is None else IMPORTED


def _settings(request: Request) -> CalibrationConfig:
    base = load_config(request.config).calibration if request.config is not None else CalibrationConfig()
    if request.from_trt_cache is not None:
        given = {"--method": request.method, "--percentile": request.percentile, "--smooth": request.smooth}
        if named := [name for name, value in given.items() if value]:
            raise UsageError(
                f"{named[0]} and --from-trt-cache exclude each other: another tool has chosen the scales already"
            )
        return replace(base, smooth=0.0)
    if request.percentile is not None and request.method not in (None, "percentile"):
        raise UsageError(f"--percentile is for --method percentile, not {request.method}")
    settings = replace(
        base,
        method=request.method or ("percentile" if request.percentile is not None else base.method),
        percentile=request.percentile if request.percentile is not None else base.percentile,
        smooth=request.smooth if request.smooth is not None else base.smooth,
    )
    calibration.check_settings(settings.method, settings.percentile, settings.smooth)
    if request.to_trt_cache is not None and settings.smooth:
        raise UsageError(
            "--to-trt-cache and --smooth exclude each other: the scales of a smoothed graph fit no other graph"
        )
    return settings


def _scales(request: Request, path: Path) -> tuple[dict[str, float] | None, int]:
    if request.from_trt_cache is None:
        return None, 0
    found = trtcache.read(request.from_trt_cache)
    return calibration.matched_scales(graphs.load_model(path), found, request.from_trt_cache)


def _default_list(source: Source, request: Request) -> str | None:
    if request.from_trt_cache is not None:
        return None
    if source.name == TINY:
        return TINY_LIST
    raise UsageError(
        f"calibrating {source.path} needs audio: name an utterance list with --data LIST "
        "(64 utterances or more, like what the engine will hear)"
    )


def _outputs(request: Request, path: Path, spec: str | None) -> Path:
    """Where the cache goes. Raises UsageError before anything is run when a file would be lost."""
    beside = calibration.default_cache(path, spec or str(request.from_trt_cache))
    output = request.output or beside
    if output.is_dir():
        output = output / beside.name
    text = request.to_trt_cache
    if text is not None and text.resolve() == output.resolve():
        raise UsageError(f"the cache and its text form would both be {output}: choose another name with -o")
    wanted = [_Output(output, "-o", "calibration cache", _is_cache)]
    if text is not None:
        wanted.append(_Output(text, "--to-trt-cache", "TensorRT text cache", trtcache.is_one))
    for one in wanted:
        one.check_place()
        if one.path.exists():
            _check_replaced(one, request, path, spec)
    return output


@dataclass(frozen=True)
class _Output:
    path: Path
    option: str
    kind: str
    is_one: Callable[[Path], bool]

    @property
    def other(self) -> str:
        return f"choose another name with {self.option}"

    def check_place(self) -> None:
        other = self.other
        if self.path.is_dir():
            raise UsageError(f"{self.path} is a folder: {other}")
        if not self.path.exists():
            folder = next(one for one in self.path.absolute().parents if one.exists())
            if not folder.is_dir() or not os.access(folder, os.W_OK):
                raise UsageError(
                    f"{self.path} cannot be written, for {folder} is no folder to write to: {other}"
                )
        elif not self.path.is_file():
            raise UsageError(f"{self.path} is no plain file: {other}")

    def replaceable(self) -> bool:
        try:
            return self.is_one(self.path)
        except OSError:
            return False


def _check_replaced(output: _Output, request: Request, path: Path, spec: str | None) -> None:
    """Nothing that is read here is ever replaced, and other files only by their kind or by --force."""
    same_kind = output.replaceable()
    # the model need not be opened once more for a file that is plainly none of it
    inputs = [request.from_trt_cache] if same_kind else _inputs(request, path, spec)
    for one in inputs:
        if one is not None and one.resolve() == output.path.resolve():
            raise UsageError(f"{one} is read here and would be replaced: {output.other}")
    if not same_kind and not request.force:
        raise UsageError(
            f"{output.path} is no {output.kind} and would be replaced: {output.other}, or use --force"
        )


def _inputs(request: Request, path: Path, spec: str | None) -> list[Path]:
    """Every file the command reads."""
    from svtool.assets import CMVN_NAME
    from svtool.utterances import read_utterances

    found = [path, manifest.manifest_path(path), path.parent / CMVN_NAME, *_weight_files(path)]
    found += [one for one in (request.from_trt_cache, request.config) if one is not None]
    if spec is not None:
        utterances = read_utterances(spec)
        found += [utterances.path, *(one.audio for one in utterances)]
    return found


def _weight_files(path: Path) -> list[Path]:
    import onnx_ir

    weights = (value.const_value for value in graphs.load_model(path).graph.initializers.values())
    return list({Path(one.path) for one in weights if isinstance(one, onnx_ir.ExternalTensor)})


def _is_cache(path: Path) -> bool:
    """Ours, whole or cut off: the schema is the first thing in it."""
    with path.open("rb") as stream:
        return b'"' + SCHEMA.split("/")[0].encode() in stream.read(200)


def _usable(cache: Path, wanted: _Wanted, progress: Progress) -> Calibration | None:
    """The finished cache, when it answers exactly what is asked; a note says why it does not."""
    from svtool.utterances import read_utterances

    if not cache.is_file():
        return None
    settings = wanted.settings
    try:
        found = calibration.load_for(
            cache,
            wanted.source.digest,
            settings,
            list_digest=read_utterances(wanted.list).digest if wanted.list else "",
            frontend=frontend_of(wanted.source) or {},
            method=wanted.method,
        )
    except ArtifactError as error:
        progress.note(f"calibrating again: {error}")
        return None
    if wanted.scales is not None and dict(found.amax) != dict(wanted.scales):
        progress.note(f"calibrating again: {cache} holds other scales")
        return None
    return found


def _made(wanted: _Wanted, request: Request, progress: Progress) -> tuple[Calibration, float, int]:
    """The calibration, its seconds and its peak memory."""
    path, settings = wanted.source.path, wanted.settings
    if wanted.list is None:
        assert wanted.scales is not None
        made = calibration.import_scales(path, wanted.scales, frontend=frontend_of(wanted.source) or {})
        return replace(made, max_seconds=settings.max_seconds), 0.0, 0
    with staging(Path(tempfile.gettempdir()), "calibrate") as folder:
        write = folder / "cache.json"
        job = {
            "list": wanted.list,
            "assets": str(path.parent),
            "method": settings.method,
            "percentile": settings.percentile,
            "max_seconds": settings.max_seconds,
            "smooth": settings.smooth,
            "scales": dict(wanted.scales) if wanted.scales is not None else None,
        }
        payload = {
            "model": str(path),
            "job": job,
            "threads": request.threads,
            "write": str(write),
            "warn": False,  # the report tells them
        }
        finished = run_child("calibrate:work", payload, progress)
        return calibration.read_cache(write), finished.wall_s, finished.peak_rss_bytes


def _with_text(report: Report, request: Request) -> Report:
    if request.to_trt_cache is None:
        return report
    if report.calibration.smooth:
        raise UsageError(f"{report.cache} is smoothed: its scales fit no other graph")
    trtcache.write(request.to_trt_cache, report.calibration.amax)
    return replace(report, trt_cache=request.to_trt_cache)
