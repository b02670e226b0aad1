"""The text format in which TensorRT's old calibrators and other tools keep activation scales.

A first line such as `TRT-8501-EntropyCalibration2`, then one `tensor: hex` line each: the scale (amax / 127) as a
float32, most significant byte first. Knows nothing of models: which names belong to one is the caller's to say.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from pathlib import Path

from svtool import manifest
from svtool.errors import ArtifactError

HEADER = "TRT-8501-EntropyCalibration2"
_HEADER = re.compile(r"TRT-\d+-\w+")
_LINE = re.compile(r"(?P<name>.+): *(?P<hex>\S*)")
_HEX = re.compile(r"[0-9a-fA-F]{8}")
_LEVELS = 127
_AGAIN = "export the cache again with the tool that made it"


def write(path: Path, amax: Mapping[str, float]) -> None:
    """Whole or not at all. Raises ArtifactError for a range whose scale a float32 cannot hold, or an unusable name."""
    lines = [HEADER]
    for name, value in amax.items():
        scale = struct.pack(">f", value / _LEVELS) if value / _LEVELS < 3.4e38 else b""
        if not scale or not _usable(*struct.unpack(">f", scale)) or "\n" in name or "\r" in name:
            raise ArtifactError(
                f"the range {value!r} of {name!r} cannot be written to {path}: it is no float32 scale"
            )
        lines.append(f"{name}: {scale.hex()}")
    with manifest.whole_file(path) as work:
        work.write_text("\n".join(lines) + "\n", encoding="utf-8")


def is_one(path: Path) -> bool:
    """Whether a file begins as such a cache does; no more of it is looked at."""
    with path.open("rb") as stream:
        first = stream.read(200).split(b"\n")[0]
    return _HEADER.fullmatch(first.decode("utf-8-sig", "replace").strip()) is not None


def read(path: Path) -> dict[str, float]:
    """Tensor name -> amax. Raises ArtifactError with the line number of whatever is no scale."""
    lines = _lines(path)
    if not lines or not _HEADER.fullmatch(lines[0].strip()):
        found = lines[0].strip()[:40] if lines else ""
        raise ArtifactError(
            f"{path}, line 1: {found!r} is not the first line of a TensorRT calibration cache "
            f"(such as {HEADER}): {_AGAIN}"
        )
    amax: dict[str, float] = {}
    for number, line in enumerate(lines[1:], 2):
        if line.strip():
            name, scale = _entry(line, f"{path}, line {number}")
            if name in amax:
                raise ArtifactError(f"{path}, line {number}: {name!r} has a scale already: {_AGAIN}")
            amax[name] = scale * _LEVELS
    return amax


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise ArtifactError(f"the TensorRT calibration cache {path} does not exist")
    try:
        # not splitlines: tensor names may hold its rarer separators
        return path.read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{path} is not a text file: {_AGAIN}") from error


def _entry(line: str, place: str) -> tuple[str, float]:
    found = _LINE.fullmatch(line.strip())
    if found is None:
        raise ArtifactError(f"{place}: {line.strip()[:60]!r} is not `tensor: scale`, cut off?: {_AGAIN}")
    name, text = found["name"], found["hex"]
    if not _HEX.fullmatch(text):
        raise ArtifactError(
            f"{place}: the scale of {name!r} is {text[:20]!r}, expected 8 hexadecimal digits: {_AGAIN}"
        )
    (scale,) = struct.unpack(">f", bytes.fromhex(text))
    if not _usable(scale):
        raise ArtifactError(
            f"{place}: the scale of {name!r} is {scale:g} ({text}), not finite and above zero: {_AGAIN}"
        )
    return name, scale


def _usable(scale: float) -> bool:
    return math.isfinite(scale) and scale > 0
