"""Where long audio is cut, and whether audio holds anything loud enough to be speech.

Both look at levels of the raw waveform only. Knows nothing of models: whether a loud sound is speech, and
what it says, is theirs to tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from svtool.errors import UsageError

FloatArray = npt.NDArray[np.float32]

SAMPLE_RATE = 16_000
_HOP = SAMPLE_RATE // 100  # 10 ms grid

MAX_SEGMENT_S = 30.0  # the models are trained on 30 s and less
SEARCH_S = 5.0
_MIN_TAIL_S = 0.5  # a shorter last piece holds half a word at best
_CUT_WINDOW = 3 * _HOP  # 30 ms around a cut: longer than a pitch period, shorter than a pause
_PAUSE_DB = 2.0  # neighbours this close to the quietest window belong to the same pause

THRESHOLD_DBFS = -57.0
"""Gate: sustained RMS level above 300 Hz under which nothing counts as speech. White noise of -60 dBFS is
-59 at most; single words of -45 dBFS RMS, the embedded recordings, are -52 to -39."""
_GATE_WINDOW = 512  # 32 ms, Hann: bins of 31 Hz, side lobes of a hum fall 60 dB before the first bin counted
_FIRST_BIN = 10  # 312 Hz: over mains hum and its first harmonics (50, 100, 150; 60, 120, 180 Hz), rumble, DC
_SUSTAINED_FRAMES = 4  # 32 + 60 ms: a click reaches 2 frames, a short vowel with its edges 5
_GATE_HOP = 2 * _HOP
_GATE_BLOCK = 2048  # frames measured at a time, 4 MB

SILENCE_DBFS = -200.0  # what digital silence measures


@dataclass(frozen=True)
class Segment:
    """A part of a waveform, samples [start, end)."""

    start: int
    end: int

    @property
    def start_s(self) -> float:
        return self.start / SAMPLE_RATE

    @property
    def end_s(self) -> float:
        return self.end / SAMPLE_RATE


@dataclass(frozen=True)
class Gate:
    """What the no-speech gate measured."""

    silent: bool
    level_dbfs: float  # loudest level that lasts about 90 ms, above 300 Hz
    threshold_dbfs: float


def split(samples: FloatArray, *, max_s: float = MAX_SEGMENT_S, search_s: float = SEARCH_S) -> list[Segment]:
    """Segments of at most `max_s` that cover [0, N) exactly, cut in the quietest pause of their
    last `search_s`.

    No samples, no segments. The last segment is never shorter than 0.5 s (or a quarter of a shorter `max_s`).
    """
    longest = int(max_s * SAMPLE_RATE)
    if longest < 4 * _HOP or search_s < 0:
        raise UsageError(
            f"segments of at most {max_s:g} s with a search of {search_s:g} s: use 0.04 s or more"
        )
    tail = min(int(_MIN_TAIL_S * SAMPLE_RATE), longest // 4)
    # even with a search as long as a segment, each one gets at least half its length
    search = min(int(search_s * SAMPLE_RATE), longest // 2)
    segments = []
    start, total = 0, len(samples)
    while total - start > longest:
        latest = min(start + longest, total - tail)
        cut = _quietest(samples, min(start + longest - search, latest), latest)
        segments.append(Segment(start, cut))
        start = cut
    if total > start:
        segments.append(Segment(start, total))
    return segments


def _quietest(samples: FloatArray, first: int, last: int) -> int:
    """The middle of the longest pause among the cut points first..last."""
    points = np.arange(first, last + 1, _HOP)
    half = _CUT_WINDOW // 2
    low, high = max(0, first - half), min(len(samples), last + half)
    energy = np.zeros(high - low + 1)
    np.cumsum(np.square(samples[low:high], dtype=np.float64), out=energy[1:])
    begins, ends = np.maximum(points - half, low), np.minimum(points + half, high)
    power = (energy[ends - low] - energy[begins - low]) / (ends - begins)
    # a sum of differences leaves rounding noise of about 1e-16 of the whole where there is digital silence
    floor = 1e-12 * float(energy[-1]) / (high - low)
    quiet = power <= max(float(power.min()), floor) * 10 ** (_PAUSE_DB / 10)
    edges = np.flatnonzero(np.diff(quiet, prepend=False, append=False))
    begin, end = max(edges.reshape(-1, 2), key=lambda pause: int(pause[1] - pause[0]))
    return int(points[(begin + end - 1) // 2])


def is_silent(samples: FloatArray, *, threshold_dbfs: float = THRESHOLD_DBFS) -> bool:
    return gate(samples, threshold_dbfs=threshold_dbfs).silent


def gate(samples: FloatArray, *, threshold_dbfs: float = THRESHOLD_DBFS) -> Gate:
    """Whether the raw waveform stays under the level of speech throughout: silence, faint noise, hum, clicks.

    Call it before any gain or normalisation: those lift silence over every threshold.
    """
    level = sustained_level_dbfs(samples)
    return Gate(level < threshold_dbfs, level, threshold_dbfs)


def sustained_level_dbfs(samples: FloatArray) -> float:
    """The loudest RMS level above 300 Hz that lasts for about 90 ms, dB below a constant 1.0."""
    power = np.concatenate(list(_frame_powers(samples)))
    width = min(_SUSTAINED_FRAMES, len(power))
    sustained = np.lib.stride_tricks.sliding_window_view(power, width).min(axis=1)
    return float(10 * np.log10(max(float(sustained.max()), 10 ** (SILENCE_DBFS / 10))))


def _frame_powers(samples: FloatArray) -> Iterator[FloatArray]:
    """Mean square above 300 Hz of every 32 ms frame, in blocks; short audio is one frame, zero-padded."""
    if len(samples) < _GATE_WINDOW:
        samples = np.pad(samples, (0, _GATE_WINDOW - len(samples)))
    window = np.hanning(_GATE_WINDOW + 1)[:-1].astype(np.float32)
    scale = np.float32(2.0 / (_GATE_WINDOW * float(np.square(window).sum())))
    frames = np.lib.stride_tricks.sliding_window_view(samples, _GATE_WINDOW)[::_GATE_HOP]
    for at in range(0, len(frames), _GATE_BLOCK):
        spectrum = np.fft.rfft(frames[at : at + _GATE_BLOCK] * window)[:, _FIRST_BIN:]
        yield scale * (np.square(spectrum.real) + np.square(spectrum.imag)).sum(axis=1)
