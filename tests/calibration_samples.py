"""Utterances for calibration tests: noise features, WAV files, and a progress that remembers its notes."""

from __future__ import annotations

import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from svtool.calibration import Sample


def noise(
    count: int, *, least: int = 8, most: int = 60, gain: float = 1.0, spoken: str = ""
) -> Iterator[Sample]:
    rng = np.random.default_rng(7)
    for index in range(count):
        length = int(rng.integers(least, most))
        feats = rng.standard_normal((length, 560), dtype=np.float32) * np.float32(gain)
        yield Sample(f"u{index}", feats, (0, 4)[index % 2], (14, 15)[index % 2], spoken)


class Notes:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def stage(self, name: str, total: float | None = None) -> None: ...

    def advance(self, amount: float = 1.0) -> None: ...

    def note(self, message: str) -> None:
        self.seen.append(message)


def write_wave(path: Path, samples: npt.NDArray[np.float64]) -> None:
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16000)
        out.writeframes(np.clip(np.rint(samples * 32767), -32768, 32767).astype("<i2").tobytes())
