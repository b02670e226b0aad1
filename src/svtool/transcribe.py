"""`svtool transcribe`: files in, one printable result each. Knows formats of results, nothing of models."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from svtool import subtitles
from svtool.artifacts import choose
from svtool.audio import Audio, decode_audio
from svtool.config import load_config
from svtool.errors import AudioError, SvtoolError, UsageError, shown
from svtool.manifest import whole_file
from svtool.progress import Progress
from svtool.recognizer import Options, Source, Transcript, open_recognizer
from svtool.utterances import Input, expand_inputs

_MAX_STDIN_BYTES = 2 << 30  # 6 hours of 16-bit stereo at 44.1 kHz


@dataclass(frozen=True)
class Request:
    files: tuple[str, ...]
    model: Path | None
    options: Options
    format: str  # text, json, srt or vtt
    output: Path | None  # directory for one file per input; None = print
    emoji: bool
    device: str
    threads: int | None
    config: Path | None = None  # TOML settings of the runtime


@dataclass(frozen=True)
class Result:
    audio: str  # the name as it may stand in a line of text
    printed: str | None  # None when written to a file, or when an error has nothing to print
    error: str | None
    warnings: tuple[str, ...] = ()


def run(request: Request, progress: Progress) -> Iterator[Result]:
    """Transcribe in order. Raises UsageError when nothing matches or several subtitles would share one stream."""
    inputs = expand_inputs(request.files)
    if len(inputs) > 1 and request.format in ("srt", "vtt") and request.output is None:
        raise UsageError(f"{len(inputs)} inputs cannot share one {request.format} stream: add -o DIR")
    targets = _targets(inputs, request)
    settings = load_config(request.config).onnxruntime if request.config else None
    recognizer = open_recognizer(
        choose(request.model, progress), device=request.device, threads=request.threads, settings=settings
    )
    try:
        results = recognizer.transcribe_files([_source(one) for one in inputs], request.options, progress)
        for one, target, result in zip(inputs, targets, results, strict=True):
            yield _result(one.name, target, result, request, alone=len(inputs) == 1)
    finally:
        recognizer.close()


def _source(one: Input) -> Source:
    if one.error is not None:
        return partial(_refuse, one.error)
    if one.path is not None:
        return partial(decode_audio, one.path, name=one.name)
    try:
        # here and not in the source: a thread that waits for a person at the keyboard could not be interrupted
        return partial(decode_audio, _read_stdin(), name=one.name)
    except AudioError as error:
        return partial(_refuse, error)


def _refuse(error: AudioError) -> Audio:
    raise error


def _read_stdin() -> bytes:
    if sys.stdin is None:  # Python's way to say that it was closed (`<&-`)
        raise AudioError("stdin is closed: pipe audio into it", reason="missing")
    try:
        read = sys.stdin.buffer.read(_MAX_STDIN_BYTES + 1)
    except OSError as error:
        raise AudioError(f"stdin cannot be read: {error.strerror}", reason="broken") from error
    if len(read) > _MAX_STDIN_BYTES:
        raise AudioError(
            f"stdin gave more than {_MAX_STDIN_BYTES >> 30} GiB, which is held in memory: write it to a file and "
            "give its name",
            reason="too_long",
        )
    return read


def _targets(inputs: list[Input], request: Request) -> list[Path | None]:
    if request.output is None:
        return [None] * len(inputs)
    suffix = {"text": ".txt", "json": ".json"}.get(request.format, f".{request.format}")
    targets = [None if one.error else request.output / f"{Path(one.name).stem}{suffix}" for one in inputs]
    counts = Counter(one for one in targets if one is not None)
    doubled = sorted(shown(str(one)) for one, count in counts.items() if count > 1)
    if doubled:
        raise UsageError(f"several inputs would be written to {', '.join(doubled)}: transcribe them apart")
    return targets


def _result(
    name: str, target: Path | None, result: Transcript | SvtoolError, request: Request, *, alone: bool
) -> Result:
    error = _sentence(name, result) if isinstance(result, SvtoolError) else None
    warnings = () if isinstance(result, SvtoolError) else _warnings(result)
    text = _formatted(name, result, error, request)
    if text is None:
        return Result(shown(name), None, error, warnings)
    if target is not None:
        with whole_file(target) as work:
            work.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
        return Result(shown(name), None, error, warnings)
    if request.format == "text" and not alone:
        text = f"{shown(name)}: {text}"
    return Result(shown(name), text.removesuffix("\n"), error, warnings)


def _sentence(name: str, error: SvtoolError) -> str:
    """The error with the name of its file, once: what failed after decoding does not know it."""
    named = str(error).startswith((shown(name), repr(name)))
    return str(error) if named else f"{shown(name)}: {error}"


def _warnings(result: Transcript) -> tuple[str, ...]:
    return (*result.warnings, *(("no speech heard",) if result.no_speech else ()))


def _formatted(
    name: str, result: Transcript | SvtoolError, error: str | None, request: Request
) -> str | None:
    if request.format == "json":
        value = as_json(name, result, error, emoji=request.emoji)
        # a name that is no UTF-8 can be written as escapes only
        return json.dumps(value, ensure_ascii=not name.isprintable(), allow_nan=False)
    if isinstance(result, SvtoolError):
        return None
    if request.format == "srt":
        return subtitles.srt(subtitles.cues(result.segments, duration_s=result.duration_s))
    if request.format == "vtt":
        return subtitles.vtt(subtitles.cues(result.segments, duration_s=result.duration_s))
    return result.rich_text if request.emoji else result.text


def as_json(
    name: str, result: Transcript | SvtoolError, error: str | None, *, emoji: bool = False
) -> dict[str, Any]:
    """The JSON line of one file; a failed one has nulls and its error."""
    head: dict[str, Any] = {"schema": "svtool.transcribe/1", "audio": name}
    if isinstance(result, SvtoolError):
        empty = dict.fromkeys(("text", "language", "emotion", "duration_s", "no_speech"))
        return head | empty | {"events": [], "segments": [], "words": [], "error": error}
    body: dict[str, Any] = {
        "text": result.text,
        "language": result.language,
        "emotion": result.emotion,
        "events": list(result.events),
        "duration_s": round(result.duration_s, 3),
        "no_speech": result.no_speech,
        "reason": result.reason,
        "warnings": list(result.warnings),
        "segments": [
            {"start_s": one.start_s, "end_s": one.end_s, "text": one.text} for one in result.segments
        ],
        "words": [
            {key: value for key, value in asdict(one).items() if key != "spaced"} for one in result.words
        ],
        "error": None,
    }
    return head | body | ({"rich_text": result.rich_text} if emoji else {})
