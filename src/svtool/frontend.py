"""Waveform to features: Kaldi fbank, low frame rate stacking, CMVN. Knows nothing of files, rates or models.

Equal to the reference front end with dither 0 (kaldi-native-fbank options of SenseVoice's `config.yaml`: 16 kHz,
25 ms / 10 ms, Hamming, 80 mel bins, snip_edges, no energy). Stateless: one `Frontend` serves any number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from svtool.errors import AudioError

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]

SAMPLE_RATE = 16_000
FRAME_SAMPLES = 400  # 25 ms
FRAME_SHIFT = 160  # 10 ms
MIN_SAMPLES = FRAME_SAMPLES  # one fbank frame; anything shorter has no features
LFR_FRAME_S = 0.06

_FFT_SIZE = 512  # next power of two above FRAME_SAMPLES, as Kaldi rounds
_BINS = _FFT_SIZE // 2  # without the Nyquist bin, which Kaldi's mel filters leave out
_MELS = 80
_LOW_HZ = 20.0  # Kaldi's default low cut-off; the high one is half the sample rate
_PREEMPHASIS = 0.97
_LFR_M = 7  # fbank frames stacked into one LFR frame
_LFR_N = 6  # fbank frames between two LFR frames
_FLOOR = np.float32(np.finfo(np.float32).eps)  # Kaldi floors mel energies at float epsilon before the log
_BLOCK = 512  # fbank frames per block: keeps the spectra of long audio inside the cache
FEATURE_SIZE = _MELS * _LFR_M  # 560


@dataclass(frozen=True)
class Cmvn:
    """Mean and variance normalisation of LFR features: (x + shift) * scale."""

    shift: FloatArray  # [560]
    scale: FloatArray  # [560]


def fbank_length(samples: int) -> int:
    """Fbank frames (10 ms) of `samples` samples at 16 kHz; 0 below 400 samples."""
    return 0 if samples < FRAME_SAMPLES else 1 + (samples - FRAME_SAMPLES) // FRAME_SHIFT


def lfr_length(samples: int) -> int:
    """LFR frames (60 ms) of `samples` samples at 16 kHz, without the four query positions."""
    return -(-fbank_length(samples) // _LFR_N)


def pad_batch(features: Sequence[FloatArray]) -> tuple[FloatArray, IntArray]:
    """Stack features [T_i, 560] into feats [B, max T, 560], zero where padded, and feat_lens [B]."""
    lengths = np.array([len(one) for one in features], dtype=np.int32)
    feats = np.zeros((len(features), int(lengths.max(initial=0)), FEATURE_SIZE), dtype=np.float32)
    for row, one in zip(feats, features, strict=True):
        row[: len(one)] = one
    return feats, lengths


class Frontend:
    """Features of one waveform, for one checkpoint's CMVN."""

    def __init__(self, cmvn: Cmvn) -> None:
        self._shift = cmvn.shift.astype(np.float32)
        self._scale = cmvn.scale.astype(np.float32)
        self._spectrum = _spectrum_matrix()
        self._mel = np.ascontiguousarray(_mel_filters().T, dtype=np.float32)

    def features(self, samples: FloatArray) -> FloatArray:
        """Features f32 [T, 560] of a mono 16 kHz waveform f32 [N] in -1..1; T = 0 below 400 samples.

        Raises AudioError (`bad_array`, `not_finite`) for anything but a finite one-dimensional float32 array.
        """
        if samples.ndim != 1 or samples.dtype != np.float32:
            raise AudioError(
                f"the front end takes a mono float32 waveform [N], not {samples.dtype} {list(samples.shape)}: "
                "pass other arrays through svtool.utterances.from_array first",
                reason="bad_array",
            )
        if not np.isfinite(samples).all():
            raise AudioError("the waveform holds NaN or infinite samples", reason="not_finite")
        return self._normalise(_stack(self._fbank(samples)))

    def _fbank(self, samples: FloatArray) -> FloatArray:
        """Log mel energies f32 [F, 80]."""
        count = fbank_length(len(samples))
        energies = np.empty((count, _MELS), dtype=np.float32)
        if count == 0:
            return energies
        frames = np.lib.stride_tricks.sliding_window_view(samples, FRAME_SAMPLES)[::FRAME_SHIFT]
        for start in range(0, count, _BLOCK):
            # the mean goes first, as in Kaldi: a constant offset then leaves exact zeros, not rounding noise
            block = frames[start : start + _BLOCK]
            block = block - block.mean(axis=1, keepdims=True)
            parts = block @ self._spectrum
            np.square(parts, out=parts)
            power = parts[:, :_BINS] + parts[:, _BINS:]
            np.matmul(power, self._mel, out=energies[start : start + _BLOCK])
        np.maximum(energies, _FLOOR, out=energies)
        return np.log(energies, out=energies)

    def _normalise(self, stacked: FloatArray) -> FloatArray:
        stacked += self._shift
        stacked *= self._scale
        return stacked


def _stack(fbank: FloatArray) -> FloatArray:
    """LFR: frame i holds fbank frames 6i-3 .. 6i+3, clamped to the first and last frame."""
    count = len(fbank)
    if count == 0:
        return np.empty((0, FEATURE_SIZE), dtype=np.float32)
    starts = np.arange(-(-count // _LFR_N)) * _LFR_N - _LFR_M // 2
    rows = np.clip(starts[:, None] + np.arange(_LFR_M), 0, count - 1)
    stacked: FloatArray = fbank[rows].reshape(len(rows), FEATURE_SIZE)
    return stacked


def _spectrum_matrix() -> FloatArray:
    """Frame without its mean -> real and imaginary parts of its spectrum, f32 [400, 2 * 256].

    Scaling to 16-bit sample values, pre-emphasis, window and Fourier transform are all linear, so one matrix does
    them; for 400 samples a matrix product is faster than numpy's FFT, which works row by row.
    """
    angles = 2.0 * np.pi * np.outer(np.arange(FRAME_SAMPLES), np.arange(_BINS)) / _FFT_SIZE
    windowed = _hamming()[:, None] * np.concatenate([np.cos(angles), -np.sin(angles)], axis=1)
    matrix = windowed.copy()
    matrix[:-1] -= _PREEMPHASIS * windowed[1:]  # y[n] = x[n] - 0.97 x[n-1]
    matrix[0] -= _PREEMPHASIS * windowed[0]  # the first sample is its own predecessor
    return np.asarray(matrix * 32768.0, dtype=np.float32)


def _hamming() -> npt.NDArray[np.float64]:
    return 0.54 - 0.46 * np.cos(2.0 * np.pi * np.arange(FRAME_SAMPLES) / (FRAME_SAMPLES - 1))


def _mel(hertz: npt.ArrayLike) -> npt.NDArray[np.float64]:
    return np.asarray(1127.0 * np.log1p(np.asarray(hertz, dtype=np.float64) / 700.0), dtype=np.float64)


def _mel_filters() -> npt.NDArray[np.float64]:
    """Triangles [80, 256], linear in mel."""
    edges = np.linspace(_mel(_LOW_HZ), _mel(SAMPLE_RATE / 2), _MELS + 2)
    bins = _mel(np.arange(_BINS) * SAMPLE_RATE / _FFT_SIZE)
    left, centre, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising = (bins - left) / (centre - left)
    falling = (right - bins) / (right - centre)
    return np.maximum(0.0, np.minimum(rising, falling))
