"""`svtool build-ort`: a model and a precision in, one ONNX file for ONNX Runtime and its manifest out, or nothing.

The file is the model after the same passes, from the same calibration cache, as a plan's. It holds the greedy head;
its logits stay inside, so `validate-wer` can read them there and no second file is needed. For a CPU, int8 takes a
form that no CPU saturates (`quantize.to_int8_cpu`), in svtool's sessions and in other programs'. Measured by
`benchmarks/ort.py`: SQNR of logits of the embedded model on speech, and of three random blocks of 512 units on
noise; speed of the latter against float32 on one core with VNNI; the last column on a CPU without VNNI, emulated by
qemu, on 40 frames of speech:

    weights, activations               speech   random   speed   without VNNI
    int8, int8 (as in plans)           41.9 dB  33.1 dB  2.2     37.4 dB (42.1 if nothing saturated)
      with x64quantprecision=1         41.9     33.1     1.0     42.1
    7 bits, uint8                      42.4     29.8     2.2     43.0
    uint8, uint8                       44.1     33.4     1.0     44.9
    chosen: pairs in 16 bits, uint8    43.6     32.2     2.2     43.8
    int8, float32 (weights only)       49.3     35.9     0.9     (nothing to saturate)

The optimized graph of ONNX Runtime is not saved ahead: it loads 3 to 20 ms sooner and runs no faster, and its fused
operators tie the file to versions and providers that have them. Knows nothing of TensorRT or of how engines are run.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svtool import build_worker, manifest, parity
from svtool import graph as graphs
from svtool.backends.onnxrt import CPU_INT8, open_session
from svtool.build_ranges import Ranges, cache_of, find_ranges, refuse_bad
from svtool.calibration import read_cache
from svtool.child import Finished, run_child
from svtool.config import Config, load_config
from svtool.errors import ArtifactError, UsageError
from svtool.profiles import megabytes
from svtool.progress import Progress, Silent
from svtool.source import Source, read_source
from svtool.sqnr import Sqnr
from svtool.staging import staging

if TYPE_CHECKING:
    from rich.console import RenderableType

PRECISIONS = ("fp32", "fp16", "int8")
HEADS = ("greedy", "logits")
DEVICES = ("cpu", "cuda")
_LIBRARIES = ("onnx", "onnx-ir", "onnxruntime-gpu", "onnxruntime", "numpy")
_LEAST_ALIKE_DB = 45.0  # of int8 with and without the switch: equal but for a step here and there


@dataclass(frozen=True)
class OrtOptions:
    precision: str = "fp32"
    output: Path | None = None  # default: <DIR>/ort-<precision>.onnx
    data: str | None = None  # utterance list to calibrate on
    calibration: Path | None = None  # finished cache
    head: str = "greedy"
    device: str = "cpu"  # what the engine is for; nothing of it is needed to build
    keep: tuple[str, ...] = ()  # patterns of layers that stay out of int8, beside the config's
    threads: int | None = None
    config: Path | None = None
    settings: Config = field(default_factory=Config)  # what `config` holds, filled in by `build_ort`

    @property
    def cpu_form(self) -> bool:
        """Float32, and int8 with float32 around it. Everything else has fp16 around it."""
        return self.device == "cpu" and self.precision != "fp16"


@dataclass(frozen=True)
class OrtReport:
    model: Path
    engine: Path
    precision: str
    head: str
    device: str
    engine_bytes: int
    model_bytes: int  # of the weights in float32
    parity: Mapping[str, Any]
    quantized_layers: int
    int8_share: float  # of linear multiply-accumulates, 0..1
    calibration: str | None
    seconds: float
    peak_rss_bytes: int
    onnxruntime: str
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        paths = {"model": str(self.model), "engine": str(self.engine), "warnings": list(self.warnings)}
        return {"schema": "svtool.build-ort/1"} | self.__dict__ | paths


def build_ort(model_path: Path, options: OrtOptions, progress: Progress | None = None) -> OrtReport:
    """Build one engine. On any exception, KeyboardInterrupt included, no file is left behind."""
    progress = progress or Silent()
    if options.config is not None:
        options = replace(options, settings=load_config(options.config))
    path = model_path / "model.onnx" if model_path.is_dir() else model_path
    _check_options(options)
    engine = _output(path, options)
    keep = (*options.settings.precision.exclude, *options.keep) if options.precision == "int8" else ()
    source = read_source(path, options.head, keep=keep)
    gc.collect()  # graphs are full of cycles: the weights read for the digest would stay while the child works
    apart = source.apart(engine.parent)
    warnings = [f"warning: {one}" for one in (*_warnings(options), *([apart] if apart else []))]
    for one in warnings:
        progress.note(one)
    ranges = _ranges(source, options, progress)
    with staging(engine.parent, "build-ort") as work:
        cache = _cache(ranges, source, options, work, progress, warnings) if ranges is not None else None
        prepared = run_child("build_ort:prepare", _payload(source, options, cache, work), progress)
        _publish(work, engine, ranges, _manifest(source, options, prepared))
    done = prepared.value
    return OrtReport(
        model=source.path,
        engine=engine,
        precision=options.precision,
        head=options.head,
        device=options.device,
        engine_bytes=engine.stat().st_size,
        model_bytes=4 * source.parameters,
        parity=done["parity"],
        quantized_layers=len(done["quantized"]),
        int8_share=done["int8_share"],
        calibration=ranges.described if ranges is not None else None,
        seconds=round(prepared.wall_s, 2),
        peak_rss_bytes=prepared.peak_rss_bytes,
        onnxruntime=done["parity"]["onnxruntime"],
        warnings=tuple(one.removeprefix("warning: ") for one in warnings),
    )


def prepare(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """In a child: the graph, as for a plan, then run as any program would run it."""
    done = build_worker.prepare(payload, progress)
    progress.stage("running the engine")
    _check_engine(Path(payload["graph"]), Path(payload["twin"]), payload)
    return done


def _check_engine(engine: Path, twin: Path, payload: Mapping[str, Any]) -> None:
    """Ids are those of its own logits, and without svtool's switch the arithmetic stays what it was measured with.

    `engine` has the head asked for, `twin` the logits head, with which parity was measured.
    """
    frames, lengths = parity.SHAPES[1]
    feed = parity.make_feed(frames, lengths)
    greedy = payload["head"] == "greedy"
    shown = graphs.LOGITS if greedy else None
    opened = open_session(engine, threads=payload["threads"], switches={}, shown=shown)
    *ids, plain = opened.run(["token_ids", graphs.LOGITS] if greedy else [graphs.LOGITS], feed)
    for row, length in enumerate(lengths):
        valid = slice(0, length + 4)
        if ids and (ids[0][row, valid] != plain[row, valid].argmax(-1)).any():
            raise ArtifactError(f"the greedy head of {engine} gives other ids than its logits")
    if payload["cpu_form"]:
        measured, _ = parity.run(open_session(twin, threads=payload["threads"]), twin, feed)
        running = Sqnr()
        running.add(measured, plain, feed["speech_lengths"] + 4)
        if running.db is None or running.db < _LEAST_ALIKE_DB:
            raise ArtifactError(
                f"on this CPU the int8 products of {payload['model']} saturate outside svtool ({running.db:.1f} dB "
                "from the true ones): please report the CPU, and build without --int8"
            )


def _check_options(options: OrtOptions) -> None:
    for name, known in (("precision", PRECISIONS), ("head", HEADS), ("device", DEVICES)):
        if (value := getattr(options, name)) not in known:
            raise UsageError(f"{name} {value!r} is not known: use one of {', '.join(known)}")
    if options.data and options.calibration:
        raise UsageError(
            "--data and --calibration exclude each other: a cache already holds the ranges of a list"
        )
    if options.keep and options.precision != "int8":
        raise UsageError("--keep keeps layers out of int8: give it with --int8")
    if options.cpu_form and options.precision == "fp32" and (options.data or options.calibration):
        raise UsageError("float32 needs no ranges: give --data or --calibration with --int8")


def _output(path: Path, options: OrtOptions) -> Path:
    engine = options.output or path.parent / f"ort-{options.precision}.onnx"
    if engine.suffix != ".onnx":
        raise UsageError(f"the output {engine} does not end in .onnx")
    if engine.resolve() == path.resolve():
        raise UsageError(f"the engine would replace the model {path}: choose another name with -o")
    if engine.with_suffix(".plan").exists():
        raise UsageError(f"{engine} is the ONNX twin of {engine.stem}.plan: choose another name with -o")
    return engine


def _warnings(options: OrtOptions) -> list[str]:
    if options.device == "cuda" and options.precision == "int8":
        return [
            "int8 for CUDA is the graph of a plan, run by ONNX Runtime: smaller on disk, its speed on a GPU has not "
            "been measured; svtool build-trt --int8 is the engine made for it"
        ]
    if options.device == "cpu" and options.precision == "fp16":
        return [
            "ONNX Runtime computes fp16 in float32 on a CPU: the file is half as large and no faster; --int8 is faster"
        ]
    return []


def _ranges(source: Source, options: OrtOptions, progress: Progress) -> Ranges | None:
    if options.precision == "fp32":
        return None
    return find_ranges(
        source,
        options.settings.calibration,
        data=options.data,
        calibration=options.calibration,
        needed=options.precision == "int8",
        progress=progress,
    )


def _cache(
    ranges: Ranges, source: Source, options: OrtOptions, work: Path, progress: Progress, warnings: list[str]
) -> Path:
    settings = options.settings.calibration
    cache = cache_of(ranges, source, settings, work=work, threads=options.threads, progress=progress)
    made = read_cache(cache)
    refuse_bad(made, ranges)
    warnings += made.warnings  # said aloud when the ranges were measured
    return cache


def _payload(source: Source, options: OrtOptions, cache: Path | None, work: Path) -> dict[str, Any]:
    movable = [name for group in source.groups for name in group.layers]
    return {
        "model": str(source.path),
        "onnx_digest": source.digest,
        "precision": options.precision,
        "cpu_form": options.cpu_form,
        "head": options.head,
        "tag_ids": list(source.tag_ids),
        "layers": movable if options.precision == "int8" else [],
        "keep_fp32": list(options.settings.precision.keep_fp32),
        "cache": str(cache) if cache else None,
        "twin": str(work / "logits.onnx"),
        "graph": str(work / "engine.onnx"),
        "threads": options.threads,
    }


def _manifest(source: Source, options: OrtOptions, prepared: Finished) -> dict[str, Any]:
    done = prepared.value
    form = {"int8_form": CPU_INT8} if options.cpu_form and options.precision == "int8" else {}
    return {
        "kind": "engine",
        "runtime": "onnxruntime",
        "provider": options.device,
        "precision": options.precision,
        "head": options.head,
        "source": source.manifest.get("source", {}),
        "model": source.path.name,
        "onnx_digest": source.digest,
        "tag_ids": list(source.tag_ids),
        "vocab_size": source.vocabulary,
        "max_frames": source.max_frames,
        "parity": done["parity"],
        "precision_map": done["precision_map"],
        "int8_share": round(done["int8_share"], 4),
        "pinned": list(source.pinned),
        "calibration": done["calibration"],
        "search": None,
        "verified_on_gpu": False,
        "options": {
            "command": "build-ort",
            "precision": options.precision,
            "head": options.head,
            "device": options.device,
        }
        | form,
        "built_with": manifest.versions(*_LIBRARIES),
        "build": {"seconds": round(prepared.wall_s, 2), "peak_rss_bytes": prepared.peak_rss_bytes},
    }


def _publish(work: Path, engine: Path, ranges: Ranges | None, described: dict[str, Any]) -> None:
    """Rename everything into place; an artifact without its manifest counts as absent, so that goes last."""
    manifest.manifest_path(engine).unlink(missing_ok=True)
    if ranges is not None and ranges.keep_as is not None:
        (work / "calibration.json").replace(ranges.keep_as)
    try:
        (work / "engine.onnx").replace(engine)
        manifest.write_manifest(engine, described)
    except BaseException:
        engine.unlink(missing_ok=True)
        manifest.manifest_path(engine).unlink(missing_ok=True)
        raise


def render(report: OrtReport) -> RenderableType:
    from rich.table import Table

    table = Table(title=f"{report.engine.name}: {report.precision}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    for name, value in _rows(report):
        table.add_row(name, value)
    return table


def _rows(report: OrtReport) -> list[tuple[str, str]]:
    sqnr, where = report.parity["sqnr_db"], "a CPU" if report.device == "cpu" else "CUDA"
    alike = "the same logits" if sqnr is None else f"{sqnr} dB"
    rows = [
        (
            "engine",
            f"{report.engine} ({megabytes(report.engine_bytes)}, {report.head} head, for ONNX Runtime on {where})",
        )
    ]
    if report.quantized_layers:
        share = f"{report.quantized_layers} layers, {100 * report.int8_share:.1f} % of linear work"
        rows += [("int8", share), ("ranges", report.calibration or "none")]
    return [
        *rows,
        (
            "against float32",
            f"{alike}, {report.parity['argmax_agreement']:.2f} % of frames agree (random features, not speech: "
            "validate-wer measures that)",
        ),
        ("time", f"{report.seconds:.1f} s, peak memory {megabytes(report.peak_rss_bytes)}"),
        (
            "next",
            f"svtool validate-wer {report.model} {report.engine}"
            + ("" if report.device == "cpu" else "  --device cuda"),
        ),
    ]
