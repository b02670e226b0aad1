"""The audio of one utterance as bytes that any browser plays.

Knows FLAC: it keeps the very samples that the engines heard, in half of their size. Knows nothing of reports.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from svtool.audio import SAMPLE_RATE, decode_audio

MOST_S = 60.0  # a page that holds an hour of audio opens nowhere
_BLOCK = 4096  # samples


@dataclass(frozen=True)
class Sound:
    flac: bytes
    duration_s: float  # of the whole recording
    cut: bool  # only its first MOST_S seconds are here


def read_sound(path: Path) -> Sound:
    """Raises AudioError when the file cannot be decoded any more."""
    audio = decode_audio(path)
    kept = audio.samples[: int(MOST_S * SAMPLE_RATE)]
    return Sound(_flac(kept), audio.duration_s, len(kept) < len(audio.samples))


def _flac(samples: npt.NDArray[np.float32]) -> bytes:  # [N] mono, -1..1
    import av

    pcm = np.clip(np.rint(samples * 32768.0), -32768, 32767).astype(np.int16)
    written = io.BytesIO()
    with av.open(written, "w", format="flac") as container:
        stream: Any = container.add_stream("flac", rate=SAMPLE_RATE)
        stream.layout, stream.format = "mono", "s16"
        for start in range(0, len(pcm), _BLOCK):
            frame = av.AudioFrame.from_ndarray(pcm[None, start : start + _BLOCK], format="s16", layout="mono")
            frame.sample_rate, frame.pts = SAMPLE_RATE, start
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return written.getvalue()
