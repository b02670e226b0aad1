"""`svtool data convert`: any list that svtool reads as JSONL, parts of recordings cut out into files of their own.

The list appears whole, with its audio, or not at all. Knows lists and samples. Knows nothing of models.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import wave
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from svtool import manifest
from svtool.audio import FloatArray
from svtool.data_check import audio_faults
from svtool.errors import AudioError, SvtoolError, UsageError, counted, shown
from svtool.lists import Fault, fault
from svtool.progress import Progress, Silent
from svtool.utterances import SAMPLE_RATE, Survey, Utterance, decode_audio, survey

SCHEMA = "svtool.data-convert/1"
_OVERSHOOT_S = 0.1  # ends of segments are often rounded up


@dataclass(frozen=True)
class Report:
    output: Path
    source: Path
    utterances: int
    cut: int  # written to files of their own
    left_out: int  # utterances that were understood but are unfit
    faults: tuple[Fault, ...]

    def to_json(self) -> dict[str, Any]:
        faults = [
            {"kind": one.kind, "count": len(one.names), "message": one.words, "names": list(one.names)}
            for one in self.faults
        ]
        return {
            "schema": SCHEMA,
            "output": str(self.output),
            "source": str(self.source),
            "utterances": self.utterances,
            "cut": self.cut,
            "left_out": self.left_out,
            "faults": faults,
        }


def convert(
    spec: str | Path,
    output: Path,
    *,
    audio: Path | None = None,
    leave_out: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Write `output`. Faults are refused, or with `leave_out` what they concern is left out and counted."""
    progress = progress or Silent()
    cuts = output.with_name(f"{output.stem}-audio")
    for path in (output, cuts):
        if path.exists():
            raise UsageError(f"{path} exists already: choose another name with -o, or remove it")
    found = survey(spec, audio)
    if found.faults and not leave_out:
        raise SvtoolError(_refusal(found, found.faults))
    # a faithful copy needs no decoding; one without faults does
    listed = (*found.faults, *audio_faults(found, progress)) if leave_out else ()
    kept = _fit(found, listed) if listed else found.utterances
    output.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{output.stem}-", dir=output.parent))
    try:
        written, short = _cut(kept, work, cuts, progress)
        faults = (*listed, *fault("bad_part", "utterance", short, "cannot be cut out of its recording"))
        if faults and not leave_out:
            raise SvtoolError(_refusal(found, faults))
        if not written:
            raise SvtoolError(f"{found.path} holds no utterance that can be used")
        if cut := sum(one.part is not None for one in kept) - len(short):
            work.rename(cuts)
        with manifest.whole_file(output) as file:
            file.write_text("".join(_lines(written, output.parent)), encoding="utf-8")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    left = len(found.utterances) - len(written)
    return Report(output, found.path, len(written), cut, left, faults)


def _fit(found: Survey, faults: Sequence[Fault]) -> Sequence[Utterance]:
    """Those that no fault concerns; of a doubled id the first."""
    named = {name for one in faults if one.kind != "duplicate_id" for name in (*one.names, *one.ids)}
    first: dict[str, Utterance] = {}
    for one in found.utterances:
        if one.id not in named and one.audio.is_file():
            first.setdefault(one.id, one)
    return tuple(first.values())


def _refusal(found: Survey, faults: Sequence[Fault]) -> str:
    said = "; ".join(map(str, faults))
    return f"{found.path}: {said}: correct them, or leave what they concern out with  --leave-out"


# ---- parts of recordings


def _cut(
    utterances: Sequence[Utterance], work: Path, final: Path, progress: Progress
) -> tuple[list[Utterance], list[str]]:
    """The utterances with parts written into `work`, named as they will be in `final`; and those that cannot be."""
    parts = [one for one in utterances if one.part is not None]
    progress.stage("cutting", total=len(parts))
    names: dict[str, Path] = {}
    failed: list[str] = []
    # by recording: each is decoded once
    recording, samples = None, np.zeros(0, np.float32)
    for one in sorted(parts, key=lambda one: str(one.audio)):
        if one.audio != recording:
            recording, samples = one.audio, _samples(one.audio)
        piece = _piece(samples, one.part)
        if piece is None:
            failed.append(one.id)
        else:
            name = f"{len(names):06d}-{re.sub(r'[^A-Za-z0-9._-]', '_', one.id)[:80]}.wav"
            _write(work / name, piece)
            names[one.id] = final / name
        progress.advance()
    lost = set(failed)
    kept = [
        replace(one, audio=names.get(one.id, one.audio), part=None, duration_s=_length(one))
        for one in utterances
        if one.id not in lost
    ]
    return kept, failed


def _length(one: Utterance) -> float | None:
    """Seconds; those of a part are its own."""
    if one.part is None:
        return one.duration_s
    start, end = one.part
    return None if end is None else round(end - start, 3)


def _samples(audio: Path) -> FloatArray:
    try:
        return decode_audio(audio).samples
    except AudioError:
        return np.zeros(0, np.float32)


def _piece(samples: FloatArray, part: tuple[float, float | None] | None) -> FloatArray | None:
    start, end = part or (0.0, None)
    whole = len(samples) / SAMPLE_RATE
    end = whole if end is None else end
    if end > whole + _OVERSHOOT_S or start >= min(end, whole):
        return None
    return samples[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)]


def _write(path: Path, samples: FloatArray) -> None:
    whole = np.clip(np.rint(samples * np.float32(32768)), -32768, 32767).astype("<i2")
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(SAMPLE_RATE)
        out.writeframes(whole.tobytes())


# ---- the list


def _lines(utterances: Sequence[Utterance], folder: Path) -> Iterator[str]:
    for one in utterances:
        yield _line(_entry(one, folder)) + "\n"


def _entry(one: Utterance, folder: Path) -> dict[str, Any]:
    audio, beside = one.audio.absolute(), folder.absolute()
    entry: dict[str, Any] = {
        "id": one.id,
        "audio": (audio.relative_to(beside) if audio.is_relative_to(beside) else audio).as_posix(),
        "text": one.text,
        "language": one.language,
        "emotion": one.emotion,
        "events": list(one.events),
        "duration": one.duration_s,
    }
    known: Mapping[str, Any] = {key: value for key, value in entry.items() if value not in (None, [])}
    return {**{key: value for key, value in one.extra.items() if key not in entry}, **known}


def _line(entry: Mapping[str, Any]) -> str:
    text = json.dumps(entry, ensure_ascii=False)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(entry)  # names of files that are no UTF-8 survive as escapes
    return text


def render(report: Report) -> str:
    lines = [f"{shown(str(report.output))}: {counted(report.utterances, 'utterance')} of {report.source}"]
    if report.cut:
        lines.append(f"{counted(report.cut, 'part')} of recordings written to files of their own")
    if report.faults:
        lines.append(f"left out: {counted(report.left_out, 'utterance')}")
        lines += [f"  {one}" for one in report.faults]
    return "\n".join(lines)
