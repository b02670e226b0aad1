"""Which calibration cache a build uses: the one named, a committed one, one beside the model, or a new one.

Caches are looked up by what they depend on, never by name alone. Knows nothing of how ranges are measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svtool.calibration import (
    MOST_LOSS_DB,
    Calibration,
    default_cache,
    frontend_settings,
    load_cache,
    load_for,
)
from svtool.child import run_child
from svtool.errors import ArtifactError, SvtoolError, UsageError
from svtool.progress import Progress

if TYPE_CHECKING:
    from svtool.config import CalibrationConfig
    from svtool.source import Source

TINY_LIST = "tiny:calibration"
COMMITTED = Path("calibration")  # caches kept in the repository


@dataclass(frozen=True)
class Ranges:
    """Where ranges come from: a finished cache, or a list to run now."""

    text: str
    cache: Path | None = None
    list: str | None = None
    keep_as: Path | None = None  # where a new cache goes

    @property
    def described(self) -> str:
        """Where they came from and where they lie."""
        return f"{self.text}, kept in {self.keep_as}" if self.keep_as is not None else self.text


def find_ranges(
    source: Source,
    settings: CalibrationConfig,
    *,
    data: str | None,
    calibration: Path | None,
    needed: bool,
    progress: Progress,
) -> Ranges | None:
    """None when nothing is named, nothing fits and nothing is needed. Raises UsageError when ranges are needed."""
    if calibration is not None:
        load_cache(calibration, source.digest, frontend=frontend_of(source))
        return Ranges(str(calibration), cache=calibration)
    if data is not None:
        return _of_list(source, settings, data, progress)
    # int8 is made from audio that somebody named; what fp16 asks of ranges, any of the same model can answer
    beside = [] if needed else source.path.parent.glob("*.calibration.json")
    for path in (*sorted(COMMITTED.glob("*.json")), *sorted(beside)):
        try:
            load_cache(path, source.digest, frontend=frontend_of(source))
        except SvtoolError:
            continue  # of another model: committed caches are looked up by digest, not by name
        return Ranges(str(path), cache=path)
    if not needed:
        return None
    if source.is_tiny:
        return _of_list(source, settings, TINY_LIST, progress)
    raise UsageError(
        f"--int8 needs audio to calibrate {source.path} on: name an utterance list with --data LIST "
        "(64 utterances or more, like what the engine will hear) or a finished cache with --calibration"
    )


def cache_of(
    ranges: Ranges,
    source: Source,
    settings: CalibrationConfig,
    *,
    work: Path,
    threads: int | None,
    progress: Progress,
) -> Path:
    """The finished cache; runs the list in a child process when there is none yet."""
    if ranges.cache is not None:
        return ranges.cache
    made = work / "calibration.json"
    job = {
        "list": ranges.list,
        "assets": str(source.path.parent),
        "method": settings.method,
        "percentile": settings.percentile,
        "max_seconds": settings.max_seconds,
        "smooth": settings.smooth,
    }
    payload = {"model": str(source.path), "job": job, "threads": threads, "write": str(made)}
    run_child("calibrate:work", payload, progress)
    return made


def refuse_bad(calibration: Calibration, ranges: Ranges) -> None:
    """Ranges that clip speech itself are no basis for an engine, whatever a gate would say. Raises ArtifactError."""
    if calibration.bad:
        raise ArtifactError(
            f"the ranges of {ranges.text} cost {calibration.lost_db:.1f} dB against plain max ranges on the same "
            f"audio (at most {MOST_LOSS_DB:g}): they clip speech. Calibrate again with  svtool calibrate --method max "
            "--data LIST"
        )


def frontend_of(source: Source) -> dict[str, Any] | None:
    """Settings of the front end that lies beside the model; None when nothing does."""
    from svtool.assets import CMVN_NAME, find_assets

    if not (source.path.parent / CMVN_NAME).is_file():
        return None
    return frontend_settings(find_assets(str(source.path.parent)).cmvn)


def _of_list(source: Source, settings: CalibrationConfig, spec: str, progress: Progress) -> Ranges:
    from svtool.utterances import read_utterances

    cache = default_cache(source.path, spec)
    if cache.is_file():
        try:
            digest = read_utterances(spec).digest
            load_for(cache, source.digest, settings, list_digest=digest, frontend=frontend_of(source))
        except ArtifactError as error:
            progress.note(f"calibrating again: {error}")
        else:
            progress.note(f"using the ranges in {cache}: same model, list and settings")
            return Ranges(str(cache), cache=cache)
    return Ranges(spec, list=spec, keep_as=cache)
