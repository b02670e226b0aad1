"""The `svtool` command: parses, calls one function per command, prints what it returns.

Results go to stdout, everything else to stderr. This is the one place that prints an error and chooses an exit code:
0 ok, 1 failed check or runtime error, 2 usage, 3 inconclusive (`validate-wer` only), 130 interrupted, 143 ended by
SIGTERM (`serve`, which is meant to be ended so: 0).
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from svtool import __version__
from svtool.errors import SvtoolError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.segment import Segment
    from rich.text import Text

INTERRUPTED = 130

# numpy's matrices here are small (the front end's); several BLAS threads would only fight the engine's own threads,
# and numpy reads this when it is first imported, which no import above does
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


class _Group(TyperGroup):
    """Turns svtool's errors into one line on stderr and an exit code."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] == "help":
            known = [one for one in args[1:2] if one in self.commands]
            ctx.fail(f"help is an option here:  {' '.join(['svtool', *known, '--help'])}")
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().make_context(*args, **kwargs)  # --help and --version print here
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _told(error) from error

    def invoke(self, ctx: Any) -> Any:
        try:
            with _own_words():
                return super().invoke(ctx)
        except SvtoolError as error:
            _say(f"error: {error}")
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as error:
            _say("interrupted")
            raise typer.Exit(INTERRUPTED) from error
        except BrokenPipeError as error:
            # the reader of our stdout went away (`svtool ... | head`): nothing is left to say
            sys.stderr.close()
            raise typer.Exit(0) from error
        except OSError as error:
            raise _told(error) from error


@contextmanager
def _own_words() -> Iterator[None]:
    """Newer typer checks values with pydantic, and passes on what pydantic says to programmers."""
    try:
        yield
    except Exception as error:
        # by what they have: neither library's exceptions have a lasting place to import them from
        found = getattr(error.__cause__, "errors", None)
        if callable(found) and hasattr(error, "format_message"):
            error.message = _value_words(found()[0])  # type: ignore[attr-defined]
        raise


def _value_words(fault: Mapping[str, Any]) -> str:
    """`fault`: one of pydantic's."""
    kind, value, limits = str(fault["type"]), str(fault["input"]), fault.get("ctx", {})
    given = repr(value) if value else "nothing"
    if kind == "greater_than_equal" and not value.lower().endswith("nan"):
        return f"{value} is too small: give {limits['ge']:g} or more"
    if kind == "less_than_equal" and not value.lower().endswith("nan"):
        return f"{value} is too large: give {limits['le']:g} or less"
    if kind.startswith("int"):
        return f"{given} is not a whole number"
    if kind.startswith(("float", "finite", "greater_than", "less_than")):
        return f"{given} is not a number"
    return str(fault["msg"]).removeprefix("Value error, ").replace("Input should be", "it should be")


def _told(error: OSError) -> SystemExit:
    _say(f"error: {_refused(error)}")
    # what could not be written must not be tried, and fail, once more when Python ends
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return SystemExit(1)


def _refused(error: OSError) -> str:
    """What the system would not do, with what, and what to do about it."""
    where = str(error.filename or "a file that was being written")
    advice = _ADVICE.get(error.errno or 0)
    return f"{where}: {error.strerror or error}" + (f": {advice}" if advice else "")


@contextmanager
def _stdout() -> Iterator[None]:
    """Names stdout in the error of a write, which names no file by itself."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        error.filename = error.filename or "stdout"
        raise


def _print(text: str) -> None:
    with _stdout():
        typer.echo(text)


_ADVICE = {
    errno.ENOSPC: "free some space there, or write somewhere else",
    errno.EDQUOT: "free some space there, or write somewhere else",
    errno.ENOTDIR: "a part of that path is a file; name another place (-o)",
    errno.EEXIST: "a part of that path is a file; name another place (-o)",
    errno.EACCES: "this user may not use it; name another place, or change its rights",
    errno.EPERM: "this user may not use it; name another place, or change its rights",
    errno.EROFS: "name a place that can be written",
}


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="SenseVoice Small from PyTorch checkpoint to a fast, verified, served engine.",
    epilog="Start with:  svtool export tiny  &&  svtool build-trt --int8  &&  svtool validate-wer",
)


class _FileCommand(TyperCommand):
    """A command whose arguments are files: a name that begins with a dash gets a hint, whichever option it hits."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = args[: args.index("--")] if "--" in args else args
        for arg in options:
            if arg.startswith("-") and len(arg) > 2 and _names_audio(arg):
                ctx.fail(f"{arg!r} is read as an option: give the file as  ./{arg}  or after  --")
        try:
            return super().parse_args(ctx, list(args))
        except Exception as error:
            # by name: which copy of click typer carries depends on its version
            if type(error).__name__ == "NoSuchOption" and not getattr(error, "possibilities", None):
                error.message += " (a file whose name begins with - is given as ./-name, or after --)"  # type: ignore[attr-defined]
            raise


def _names_audio(arg: str) -> bool:
    from svtool.utterances import AUDIO_SUFFIXES

    return os.path.lexists(arg) or ("=" not in arg and os.path.splitext(arg)[1].lower() in AUDIO_SUFFIXES)


class Format(str, Enum):
    text = "text"
    json = "json"
    srt = "srt"
    vtt = "vtt"


class HeadChoice(str, Enum):
    greedy = "greedy"
    logits = "logits"


class Method(str, Enum):
    percentile = "percentile"
    max = "max"
    entropy = "entropy"
    mse = "mse"


class Flavor(str, Enum):
    auto = "auto"
    rtx = "rtx"
    classic = "classic"


class Korean(str, Enum):
    words = "words"
    characters = "characters"


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout instead of a report.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto (the CPU; nothing moves to a GPU by itself).")]
Threads = Annotated[
    int | None, typer.Option(min=1, max=256, help="CPU threads of the engine (default: all cores).")
]

Settings = Annotated[Path | None, typer.Option(help="TOML settings, see configs/.")]


def _print_version(asked: bool) -> None:
    # as the option's own callback, which runs before a missing command is an error
    if asked:
        _print(f"svtool {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Print the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    warnings.showwarning = lambda message, *_, **__: _say(f"warning: {message}")


@app.command(epilog="Example:  svtool export FunAudioLLM/SenseVoiceSmall -o engines/sensevoice")
def export(
    source: Annotated[
        str,
        typer.Argument(help="tiny, a directory, iic/SenseVoiceSmall or FunAudioLLM/SenseVoiceSmall."),
    ] = "tiny",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Directory to write (default: engines/<name>).")
    ] = None,
    opset: Annotated[int, typer.Option(help="ONNX opset of the graph.")] = 18,
    simplify: Annotated[bool, typer.Option(help="Run onnxsim and keep its result if it is sound.")] = True,
    device: Annotated[str, typer.Option(help="Where PyTorch traces the model: cpu or cuda.")] = "cpu",
    revision: Annotated[str | None, typer.Option(help="Hub revision of the checkpoint.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Export again even when nothing changed.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Checkpoint to ONNX, proven equal to PyTorch.

    Batch and time axes are dynamic; onnxsim's result is used if it is sound."""
    from svtool.export import ExportOptions, render
    from svtool.export import export as run
    from svtool.progress import RichProgress

    options = ExportOptions(opset=opset, simplify=simplify, device=device, revision=revision, force=force)
    with RichProgress(quiet=quiet) as progress:
        _note_tiny(source, progress.note)
        report = run(source, output, options, progress)
    _emit(report.to_json(), as_json, lambda: render(report))


@app.command(
    name="transcribe", cls=_FileCommand, epilog="Example:  svtool transcribe talk.m4a --format srt > talk.srt"
)
def transcribe(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Audio files, globs, directories, or - for stdin (named stdin in results); each is read once. "
            "A name that begins with - goes after --, or as ./-name."
        ),
    ],
    model: Annotated[
        Path | None,
        typer.Option(
            "-m", "--model", help="Model or engine (default: newest under engines/ that runs here)."
        ),
    ] = None,
    language: Annotated[
        str, typer.Option(help="auto, zh, en, yue, ja or ko. A hint to the model, not a filter.")
    ] = "auto",
    allow_languages: Annotated[
        str | None, typer.Option(help="Comma-separated filter: the best of these is used, e.g. zh,en.")
    ] = None,
    itn: Annotated[bool, typer.Option("--itn/--no-itn", help="Digits and punctuation in the text.")] = False,
    emoji: Annotated[bool, typer.Option("--emoji", help="Emotion and event emoji in the text.")] = False,
    output_format: Annotated[
        Format, typer.Option("--format", "-f", help="What to print for each file.")
    ] = Format.text,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Directory for one <name>.<format> file per input.")
    ] = None,
    batch_size_s: Annotated[float, typer.Option(min=1.0, help="Padded audio seconds in one batch.")] = 60.0,
    device: Device = "auto",
    threads: Threads = None,
    config: Settings = None,
    quiet: Quiet = False,
) -> None:
    """Audio files to text, JSON lines or subtitles.

    One bad file is reported and the rest finish (exit 1)."""
    from svtool.assets import parse_language
    from svtool.progress import RichProgress
    from svtool.recognizer import Options
    from svtool.transcribe import Request, run

    options = Options(
        language=parse_language(language),
        itn=itn,
        allow_languages=tuple(parse_language(one) for one in (allow_languages or "").split(",") if one),
        batch_size_s=batch_size_s,
    )
    if allow_languages is not None and not options.allow_languages:
        raise UsageError("--allow-languages names no language: give a list such as zh,en, or leave it out")
    if "auto" in options.allow_languages:
        raise UsageError(
            "--allow-languages is a list of languages to choose from, such as zh,en: auto is not one"
        )
    request = Request(
        tuple(files), model, options, output_format.value, output, emoji, device, threads, config
    )
    failed = 0
    with RichProgress(quiet=quiet) as progress:
        for result in run(request, progress):
            failed += result.error is not None
            if result.error is not None:
                progress.note(f"error: {result.error}")
            for warning in result.warnings:
                progress.note(f"warning: {result.audio}: {warning}")
            if result.printed is not None:
                _print(result.printed)
    if failed:
        raise typer.Exit(1)


@app.command(epilog="Example:  svtool calibrate engines/sensevoice --data calib.jsonl")
def calibrate(
    model: Annotated[
        Path, typer.Argument(help="An exported model.onnx or its directory.", show_default=True)
    ] = Path("engines/tiny/model.onnx"),
    data: Annotated[
        str | None,
        typer.Option(help="Utterance list like what the engine will hear (tiny alone has one of its own)."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="The cache to write (default: <list>.calibration.json beside the model)."
        ),
    ] = None,
    method: Annotated[
        Method | None, typer.Option(help="How ranges are clipped (default: percentile).", show_default=False)
    ] = None,
    percentile: Annotated[
        float | None,
        typer.Option(help="Percentile of --method percentile (default: 99.999).", show_default=False),
    ] = None,
    smooth: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Move loud channels into the weights, 0 (default) to 1.",
            show_default=False,
        ),
    ] = None,
    from_trt_cache: Annotated[
        Path | None,
        typer.Option(help="Take the scales from a TensorRT text cache; --data then measures the rest."),
    ] = None,
    to_trt_cache: Annotated[
        Path | None, typer.Option(help="Write the scales as a TensorRT text cache too.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML settings, see configs/.")] = None,
    threads: Threads = None,
    force: Annotated[
        bool, typer.Option("--force", help="Calibrate again even when nothing changed.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Ranges of a model on real audio, for int8.

    Says what int8 costs, and warns about audio that makes bad ranges."""
    from svtool.calibrate import Request, render
    from svtool.calibrate import run as start
    from svtool.progress import RichProgress

    request = Request(
        model, data, output, method.value if method else None, percentile, smooth, from_trt_cache, to_trt_cache,
        config, threads, force,
    )  # fmt: skip
    with RichProgress(quiet=quiet) as progress:
        report = start(request, progress)
        for warning in report.calibration.warnings if as_json else ():  # the table shows them
            progress.note(f"warning: {warning}")
    _emit(report.to_json(), as_json, lambda: render(report))
    if report.exit_code:
        raise typer.Exit(report.exit_code)


@app.command(
    name="build-trt",
    epilog="Example:  svtool build-trt engines/sensevoice --int8 --data calib.jsonl --drift-budget 0.5 "
    "--drift-data test.jsonl",
)
def build_trt(
    model: Annotated[
        Path, typer.Argument(help="An exported model.onnx or its directory.", show_default=True)
    ] = Path("engines/tiny/model.onnx"),
    fp16: Annotated[bool, typer.Option("--fp16", help="Half precision (the default).")] = False,
    int8: Annotated[bool, typer.Option("--int8", help="Int8 linears, half precision elsewhere.")] = False,
    weight_only: Annotated[
        bool, typer.Option("--weight-only", help="With --int8: int8 weights, half precision arithmetic.")
    ] = False,
    data: Annotated[str | None, typer.Option(help="Utterance list to calibrate with.")] = None,
    calibration: Annotated[Path | None, typer.Option(help="Calibration cache made before.")] = None,
    drift_budget: Annotated[
        float | None,
        typer.Option(help="Points of WER/CER to spend: searches for the most int8 that keeps within."),
    ] = None,
    drift_data: Annotated[
        str | None, typer.Option(help="Utterance list with reference texts that drift is measured on.")
    ] = None,
    max_disagreement: Annotated[
        float | None, typer.Option(help="Search limit: percent of candidate against baseline text.")
    ] = None,
    min_sqnr: Annotated[float | None, typer.Option(help="Search limit: SQNR of logits, dB.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Measure on this many utterances, spread evenly over the list.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the search's bootstrap.")] = 0,
    keep_fp16: Annotated[
        list[str] | None,
        typer.Option(help='Pattern of layers to keep out of int8, such as "*.w_2"; may be repeated.'),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The plan to write.")] = None,
    head: Annotated[
        HeadChoice, typer.Option(help="greedy: token ids leave the engine; logits: everything does.")
    ] = HeadChoice.greedy,
    profile: Annotated[
        list[str] | None, typer.Option(help="B:SECONDS, largest batch and length; may be repeated.")
    ] = None,
    flavor: Annotated[Flavor, typer.Option(help="Which TensorRT builds.")] = Flavor.auto,
    compute_capability: Annotated[
        list[str] | None,
        typer.Option(help="TensorRT-RTX: build for these GPUs only, such as 8.9; may be repeated."),
    ] = None,
    workspace_mb: Annotated[int | None, typer.Option(min=1, help="Builder workspace limit.")] = None,
    optimization_level: Annotated[
        int | None, typer.Option(min=0, max=5, help="Of the builder: higher looks longer.")
    ] = None,
    timing_cache: Annotated[
        Path | None, typer.Option(help="TensorRT: file of measured kernels, read and written again.")
    ] = None,
    threads: Threads = None,
    config: Annotated[Path | None, typer.Option(help="TOML settings, see configs/.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """ONNX to an FP16 or INT8 TensorRT plan.

    The ONNX twin beside the plan runs without a GPU. With --drift-budget, exit 3 means: built, but too little data
    to prove that the budget holds."""
    from svtool.build import BuildOptions, SearchOptions
    from svtool.build import build as run
    from svtool.build_report import render
    from svtool.config import parse_profile
    from svtool.progress import RichProgress

    if fp16 and int8:
        raise UsageError("--fp16 and --int8 exclude each other: an int8 engine keeps the rest in fp16 anyway")
    if weight_only and not int8:
        raise UsageError("--weight-only is a kind of int8: give it with --int8")
    of_search = {
        "--drift-data": drift_data,
        "--max-disagreement": max_disagreement,
        "--min-sqnr": min_sqnr,
        "--limit": limit,
    }
    lonely = [name for name, value in of_search.items() if value is not None]
    if lonely and drift_budget is None:
        raise UsageError(f"{', '.join(lonely)} belong to a search: give --drift-budget POINTS too")
    options = BuildOptions(
        precision=("int8-weights" if weight_only else "int8") if int8 else "fp16",
        data=data,
        calibration=calibration,
        output=output,
        head=head.value,
        profiles=tuple(parse_profile(one) for one in profile or ()),
        keep_fp16=tuple(keep_fp16 or ()),
        budget=None
        if drift_budget is None
        else SearchOptions(drift_budget, drift_data, max_disagreement, min_sqnr, limit, seed),
        flavor=flavor.value,
        compute_capability=tuple(compute_capability or ()),
        workspace_mb=workspace_mb,
        optimization_level=optimization_level,
        timing_cache=timing_cache,
        threads=threads,
        config=config,
    )
    with RichProgress(quiet=quiet) as progress:
        report = run(model, options, progress)
    _emit(report.to_json(), as_json, lambda: render(report))
    if report.exit_code:
        raise typer.Exit(report.exit_code)


@app.command(
    name="build-ort", epilog="Example:  svtool build-ort engines/sensevoice --int8 --data calib.jsonl"
)
def build_ort(
    model: Annotated[
        Path, typer.Argument(help="An exported model.onnx or its directory.", show_default=True)
    ] = Path("engines/tiny/model.onnx"),
    int8: Annotated[bool, typer.Option("--int8", help="Int8 linears (default: float32).")] = False,
    fp16: Annotated[bool, typer.Option("--fp16", help="Half precision, for CUDA.")] = False,
    data: Annotated[str | None, typer.Option(help="Utterance list to calibrate with.")] = None,
    calibration: Annotated[Path | None, typer.Option(help="Calibration cache made before.")] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(help='Pattern of layers to keep out of int8, such as "*.w_2"; may be repeated.'),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The file to write (default: ort-<precision>.onnx beside it)."),
    ] = None,
    head: Annotated[
        HeadChoice, typer.Option(help="greedy: token ids leave the engine; logits: everything does.")
    ] = HeadChoice.greedy,
    device: Annotated[str, typer.Option(help="What it will run on: cpu or cuda.")] = "cpu",
    threads: Threads = None,
    config: Settings = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """ONNX to an engine for ONNX Runtime, without TensorRT.

    Int8 for a CPU is exact on every CPU, in other programs too."""
    from svtool.build_ort import OrtOptions, render
    from svtool.build_ort import build_ort as run
    from svtool.progress import RichProgress

    if fp16 and int8:
        raise UsageError("--fp16 and --int8 exclude each other")
    options = OrtOptions(
        precision="int8" if int8 else "fp16" if fp16 else "fp32",
        output=output,
        data=data,
        calibration=calibration,
        head=head.value,
        device=device,
        keep=tuple(keep or ()),
        threads=threads,
        config=config,
    )
    with RichProgress(quiet=quiet) as progress:
        report = run(model, options, progress)
    _emit(report.to_json(), as_json, lambda: render(report))


@app.command(
    name="validate-wer",
    epilog="Example:  svtool validate-wer model.onnx int8.plan --data test.jsonl --json > report.json",
)
def validate_wer(
    baseline: Annotated[
        Path | None,
        typer.Argument(
            help="Model to compare with, or saved texts (JSON lines, Kaldi text, .trn, report).",
            show_default=False,
        ),
    ] = None,
    candidate: Annotated[
        Path | None, typer.Argument(help="Engine to judge, or saved texts.", show_default=False)
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Utterance list with reference texts (tiny alone defaults to tiny:drift)."),
    ] = None,
    budget: Annotated[float | None, typer.Option(help="Allowed drift in points (default 0.5).")] = None,
    max_disagreement: Annotated[
        float | None, typer.Option(help="Fail above this, percent of candidate against baseline text.")
    ] = None,
    min_sqnr: Annotated[float | None, typer.Option(help="Fail below this SQNR of logits, dB.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use this many utterances, spread evenly over the list.")
    ] = None,
    language: Annotated[str, typer.Option(help="Language hint given to both sides.")] = "auto",
    normaliser: Annotated[
        str, typer.Option(help="basic, none, english, chinese, chinese-simplified, or auto: by language.")
    ] = "basic",
    korean: Annotated[Korean, typer.Option(help="What Korean is counted in.")] = Korean.words,
    config: Annotated[Path | None, typer.Option(help="TOML settings, see configs/.")] = None,
    reports: Annotated[
        list[Path] | None,
        typer.Option(
            "--report",
            metavar="FILE",
            help="Write the report too: .html, .md, .xml (JUnit) or .json (repeat).",
        ),
    ] = None,
    audio: Annotated[
        bool, typer.Option("--audio", help="Put the audio of the worst utterances on the HTML page.")
    ] = False,
    allow_overlap: Annotated[
        bool, typer.Option("--allow-overlap", help="Use audio that an engine was calibrated on all the same.")
    ] = False,
    references_only: Annotated[
        bool,
        typer.Option("--references-only", help="Rates of one artifact, without a baseline or a verdict."),
    ] = False,
    by: Annotated[
        list[str] | None, typer.Option(help="Break rates down by this column of the list too (repeat).")
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(help="Keep every answer in this .jsonl; the same command again goes on there."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that share the work on a CPU.")] = 1,
    device: Device = "auto",
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """How much WER/CER an engine costs: a gate.

    Exit 0 pass, 1 fail, 3 inconclusive."""
    from svtool.progress import RichProgress
    from svtool.wer import rates
    from svtool.wer.command import Request, run, run_alone
    from svtool.wer.outputs import require_writable, write_reports
    from svtool.wer.report import to_json
    from svtool.wer.terminal import render

    request = Request(
        baseline, candidate, data, budget, max_disagreement, min_sqnr, limit, language, normaliser, config,
        device, threads, allow_overlap, results, jobs, tuple(by or ()), korean.value,
    )  # fmt: skip
    if references_only and reports:
        raise UsageError(
            "--report shows a comparison, and --references-only is none: use --json for its rates"
        )
    require_writable(
        reports or (), audio=audio, inputs=[Path(one) for one in (baseline, candidate, data, results) if one]
    )
    if references_only:
        with RichProgress(quiet=quiet) as progress:
            alone = run_alone(request, progress)
        _emit(rates.to_json(alone), as_json, lambda: rates.render(alone))
        raise typer.Exit(alone.exit_code)
    with RichProgress(quiet=quiet) as progress:
        report = run(request, progress)
    write_reports(report, reports or (), audio=audio)
    _emit(to_json(report), as_json, lambda: render(report))
    raise typer.Exit(report.exit_code)


data_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Utterance lists: what is in one, and whether it is fit for use.",
    epilog="Example:  svtool data check test.jsonl",
)
app.add_typer(data_app, name="data")

AudioFolder = Annotated[
    Path | None,
    typer.Option(
        "--audio", help="Folder of the audio, when it is not the list's own (.trn, Kaldi text ...)."
    ),
]


@data_app.command(
    name="check", epilog="Example:  svtool data check LibriSpeech/test-clean --json > check.json"
)
def data_check(
    data: Annotated[
        str,
        typer.Argument(
            metavar="LIST",
            help="JSONL, TSV, CSV, a Kaldi directory, a LibriSpeech or AISHELL folder, .trn, or tiny:NAME.",
        ),
    ],
    audio: AudioFolder = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Decode a whole list and say what is wrong with it.

    Exit 1 when it is unfit as it is; whatever is only worth knowing is a note."""
    from svtool import tiny
    from svtool.data_check import check, render
    from svtool.progress import RichProgress

    with RichProgress(quiet=quiet) as progress:
        tiny.render_named(data, progress)
        report = check(data, audio, progress)
    _emit_page(report.to_json(), as_json, lambda width: render(report, width))
    raise typer.Exit(report.exit_code)


@data_app.command(name="convert", epilog="Example:  svtool data convert kaldi/test -o lists/test.jsonl")
def data_convert(
    data: Annotated[str, typer.Argument(metavar="LIST", help="Any list that svtool reads.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The JSONL to write.")],
    audio: AudioFolder = None,
    leave_out: Annotated[
        bool, typer.Option("--leave-out", help="Leave out what is faulty, and say what that was.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Any list to JSONL.

    Parts of recordings (Kaldi segments, NeMo offsets) are cut into files of their own."""
    from svtool import tiny
    from svtool.data_convert import convert, render
    from svtool.progress import RichProgress

    with RichProgress(quiet=quiet) as progress:
        tiny.render_named(data, progress)
        report = convert(data, output, audio=audio, leave_out=leave_out, progress=progress)
    _print(json.dumps(report.to_json(), ensure_ascii=False) if as_json else render(report))


@app.command(epilog="Example:  svtool serve engines/sensevoice/int8.onnx --port 8000")
def serve(
    artifact: Annotated[
        Path | None, typer.Argument(help="Engine to serve (default: newest that runs here).")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 7860,
    ui: Annotated[bool, typer.Option("--ui/--no-ui", help="The web page at / (slower start).")] = True,
    max_upload_mb: Annotated[float, typer.Option(min=0.001, help="Largest upload.")] = 25.0,
    max_duration_s: Annotated[float, typer.Option(min=1.0, help="Longest audio of one upload.")] = 600.0,
    device: Device = "auto",
    threads: Threads = None,
    config: Settings = None,
    quiet: Quiet = False,
) -> None:
    """Serve an engine: HTTP API and web page.

    Ctrl-C (exit 130) and SIGTERM (exit 0) end it: what runs has 4 seconds to finish."""
    from svtool.artifacts import choose
    from svtool.progress import RichProgress
    from svtool.serving import serve as run

    with RichProgress(quiet=quiet) as progress:
        run(
            choose(artifact, progress),
            host=host,
            port=port,
            ui=ui,
            device=device,
            threads=threads,
            max_upload_mb=max_upload_mb,
            max_duration_s=max_duration_s,
            config=config,
            progress=progress,
        )


@app.command(epilog="Example:  svtool inspect engines/tiny/int8.plan")
def inspect(
    artifact: Annotated[
        Path, typer.Argument(help="Model, engine, calibration cache, report, manifest, or a folder.")
    ],
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """What a file is, where it comes from, what to do with it.

    Foreign ONNX too. Exit 1 when it is not the file its manifest describes."""
    from svtool.inspect import inspect as run
    from svtool.inspect_page import render
    from svtool.progress import RichProgress

    with RichProgress(quiet=quiet) as progress:
        found = run(artifact, progress)
    _emit_page(found.to_json(), as_json, lambda width: render(found, width))
    raise typer.Exit(found.exit_code)


@app.command(epilog="Example:  svtool doctor --json > machine.json")
def doctor(as_json: Json = False, quiet: Quiet = False) -> None:
    """What works on this machine, and what to install.

    Tries libraries, providers and decoders. Exit 1 when not even the CPU works,
    130 after Ctrl-C, 143 after SIGTERM."""
    from svtool.doctor import diagnose
    from svtool.doctor_page import render
    from svtool.progress import RichProgress

    with RichProgress(quiet=quiet) as progress:
        progress.note("trying every library, provider and decoder: about 10 seconds")
        diagnosis = diagnose(progress)
    _emit_page(diagnosis.to_json(), as_json, lambda width: render(diagnosis, width))
    raise typer.Exit(diagnosis.exit_code)


@app.command(epilog="Example:  svtool verify engines/sensevoice/int8.plan")
def verify(
    plan: Annotated[Path, typer.Argument(help="A plan, on the GPU that it is meant for.")],
    cuda_graphs: Annotated[
        bool, typer.Option("--cuda-graphs", help="Try CUDA graphs; used from then on if all cases pass.")
    ] = False,
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a plan on this GPU at every corner of its profiles, against its ONNX twin.

    The outcome goes into the plan's manifest (exit 1 if a case fails, or without a GPU)."""
    from svtool.progress import RichProgress
    from svtool.verify import render
    from svtool.verify import verify as run

    with RichProgress(quiet=quiet) as progress:
        report = run(plan, threads=threads, cuda_graphs=cuda_graphs, progress=progress)
    _emit(report.to_json(), as_json, lambda: render(report))
    raise typer.Exit(0 if report.passed else 1)


@app.command(epilog="Example:  svtool demo")
def demo() -> None:
    """Export, build, validate and transcribe with the embedded model."""
    from svtool.demo import run

    raise typer.Exit(run())


def _note_tiny(source: str, note: Callable[[str], None]) -> None:
    if source == "tiny":
        from svtool.artifacts import TINY_NOTE

        note(TINY_NOTE)


def _emit(value: dict[str, Any], as_json: bool, rendered: Callable[[], RenderableType]) -> None:
    if as_json:
        _print(json.dumps(value, ensure_ascii=False, allow_nan=False))
        return
    from rich.console import Console
    from rich.segment import Segment, Segments

    console = Console()
    with _stdout():
        for line in console.render_lines(rendered(), pad=False):
            console.print(Segments([*_trimmed(line), Segment.line()]), end="")


def _trimmed(line: list[Segment]) -> list[Segment]:
    """Tables pad their lines; in a file or a diff the spaces at the end are noise."""
    kept = list(line)
    while kept:
        last = kept.pop()
        if text := last.text.rstrip():
            return [*kept, last._replace(text=text)]
    return kept


def _emit_page(value: dict[str, Any], as_json: bool, page: Callable[[int], Text]) -> None:
    """For reports that break their own lines: a path longer than the terminal is neither cut nor broken."""
    if as_json:
        _print(json.dumps(value, ensure_ascii=False, allow_nan=False))
        return
    from rich.console import Console

    console = Console()
    with _stdout():
        console.print(page(console.width), soft_wrap=True)


def _say(message: str) -> None:
    typer.echo(message, err=True)


def main() -> None:
    if "serve" not in sys.argv[1:2]:  # the server has its own clean stop
        signal.signal(signal.SIGTERM, _leave)
    try:
        app()
    except KeyboardInterrupt:  # before a command has begun, or while one is being left
        _say("interrupted")
        sys.exit(INTERRUPTED)


def _leave(number: int, _: object) -> None:
    # SystemExit lets every clean-up on the way out run: no half-written folder stays
    raise SystemExit(128 + number)
