"""Waveform to features: Kaldi fbank, low frame rate stacking, CMVN. Knows nothing of files, rates or models.

Equal to the reference front end with dither 0 (kaldi-native-fbank options of SenseVoice's `config.yaml`:
16 kHz, 25 ms / 10 ms, Hamming, 80 mel bins, snip_edges, no energy). Stateless: one `Frontend` serves any number
of threads.
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
_STREAMS = 32  # a frame is 32 interleaved streams: samples r, r + 32, r + 64, ...
_STREAM_SAMPLES = -(-FRAME_SAMPLES // _STREAMS)  # 13, the last one zero in half of the streams
_PERIOD = _FFT_SIZE // _STREAMS  # 16: bins k, k + 16, k + 32, ... need the same sum over a stream
_HALF = _PERIOD // 2 + 1  # 9: streams are real, so the sums for k = 0..8 say it all
_MELS = 80
_LOW_HZ = 20.0  # Kaldi's default low cut-off; the high one is half the sample rate
_PREEMPHASIS = 0.97
_LFR_M = 7  # fbank frames stacked into one LFR frame
_LFR_N = 6  # fbank frames between two LFR frames
_FLOOR = np.float32(np.finfo(np.float32).eps)  # Kaldi floors mel energies at float epsilon before the log
_BLOCK = 144  # fbank frames per block: keeps the spectra of long audio inside the cache
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
        self._streams, self._across = _stream_matrices(), _across_matrix()
        self._mel = np.ascontiguousarray(_mel_filters()[:, _bins().ravel()].T, dtype=np.float32)

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
        stacked = _stack(self._fbank(samples))
        stacked += self._shift
        stacked *= self._scale
        return stacked

    def _fbank(self, samples: FloatArray) -> FloatArray:
        """Log mel energies f32 [F, 80]."""
        energies = np.empty((fbank_length(len(samples)), _MELS), dtype=np.float32)
        for start in range(0, len(energies), _BLOCK):
            block = energies[start : start + _BLOCK]
            first = start * FRAME_SHIFT
            last = first + (len(block) - 1) * FRAME_SHIFT + FRAME_SAMPLES
            np.matmul(self._power(_frames(samples[first:last])).T, self._mel, out=block)
        np.maximum(energies, _FLOOR, out=energies)
        return np.log(energies, out=energies)

    def _power(self, frames: FloatArray) -> FloatArray:
        """Power spectra f32 [288, F] of frames [416, F], bins in the order of `_bins`.

        A Fourier transform in two steps of small matrices, all frames at once: a quarter of the work of one
        matrix, and faster than numpy's FFT, which goes frame by frame.
        """
        count = frames.shape[1]
        streams = frames.reshape(_STREAM_SAMPLES, _STREAMS, count).swapaxes(0, 1)  # [32, 13, F]
        sums = self._streams @ streams  # [32, re and im of 9, F]
        spectra = self._across @ sums.reshape(2 * _STREAMS, _HALF, count).swapaxes(0, 1)  # [9, 2 * 32, F]
        np.square(spectra, out=spectra)
        power: FloatArray = spectra[:, :_STREAMS] + spectra[:, _STREAMS:]
        return power.reshape(-1, count)


def _frames(samples: FloatArray) -> FloatArray:
    """Frames f32 [416, F] of samples f32 [400 + 160 * (F - 1)]: one per column, 400 samples and 16 zeros.

    Kaldi takes each frame's mean away, then applies pre-emphasis. Here pre-emphasis comes first, once for
    frames that overlap, and turns a mean m into m - 0.97 m. In float64 up to the last step: float32 would
    leave noise above the floor of a constant offset, and beside loud tones more noise than the reference has.
    """
    count = fbank_length(len(samples))
    wave = np.zeros((count + 2) * FRAME_SHIFT)  # whole hops; the last frame ends within the last one
    wave[: len(samples)] = samples
    half_hops = wave.reshape(-1, FRAME_SHIFT // 2).sum(axis=1)[:-1]
    means = np.convolve(half_hops, np.full(5, 1 / FRAME_SAMPLES), "valid")[::2]  # of five half hops each
    offsets = means - _PREEMPHASIS * means
    firsts = wave[: count * FRAME_SHIFT : FRAME_SHIFT]
    firsts = firsts - _PREEMPHASIS * firsts - offsets  # a frame's first sample is its own predecessor
    wave[1:] -= _PREEMPHASIS * wave[:-1]
    hops = wave.reshape(-1, FRAME_SHIFT).T.copy()  # [160, F + 2]
    frames = np.empty((_STREAM_SAMPLES * _STREAMS, count), dtype=np.float32)
    for hop, row in enumerate(range(0, FRAME_SAMPLES, FRAME_SHIFT)):
        rows = min(FRAME_SHIFT, FRAME_SAMPLES - row)
        np.subtract(hops[:rows, hop : hop + count], offsets, out=frames[row : row + rows])
    frames[0] = firsts
    frames[FRAME_SAMPLES:] = 0.0
    return frames


def _stack(fbank: FloatArray) -> FloatArray:
    """LFR: frame i holds fbank frames 6i-3 .. 6i+3, clamped to the first and last frame."""
    count = len(fbank)
    starts = np.arange(-(-count // _LFR_N)) * _LFR_N - _LFR_M // 2
    rows = np.clip(starts[:, None] + np.arange(_LFR_M), 0, count - 1)
    stacked: FloatArray = fbank[rows].reshape(len(rows), FEATURE_SIZE)
    return stacked


def _stream_matrices() -> FloatArray:
    """Stream r of a frame -> its part of bins k = 0..8, f32 [32, re and im of 9, 13].

    Hamming window and scaling to 16-bit sample values are in it.
    """
    samples = _STREAM_SAMPLES * _STREAMS
    angles = 2.0 * np.pi * np.outer(np.arange(_HALF), np.arange(samples)) / _FFT_SIZE
    window = np.pad(_hamming() * 32768.0, (0, samples - FRAME_SAMPLES))
    matrix = np.concatenate([np.cos(angles), -np.sin(angles)]) * window
    streams = matrix.reshape(2 * _HALF, _STREAM_SAMPLES, _STREAMS).transpose(2, 0, 1)
    return np.ascontiguousarray(streams, dtype=np.float32)


def _across_matrix() -> FloatArray:
    """Re and im of the 32 parts of bin k -> re, then im, of bins k + 16 q, q = 0..31: f32 [2 * 32, 32 * 2].

    From bin k to k + 16 q the part of stream r turns by exp(-2 pi i q r / 32), whatever k is.
    """
    angles = 2.0 * np.pi * np.outer(np.arange(_STREAMS), np.arange(_STREAMS)) / _STREAMS
    cos, sin = np.cos(angles), np.sin(angles)
    matrix = np.stack([np.stack([cos, sin], axis=-1), np.stack([-sin, cos], axis=-1)])  # [2, q, r, 2]
    return matrix.reshape(2 * _STREAMS, 2 * _STREAMS).astype(np.float32)


def _bins() -> IntArray:
    """The bin, 0..256, of each row of `Frontend._power`, [9, 32].

    A bin b above 256 is 512 - b, mirrored. Rows k = 0 and 8 hold most bins twice: their second half counts
    as bin 256, the Nyquist bin, which Kaldi's mel filters leave out.
    """
    bins = np.arange(_HALF, dtype=np.int32)[:, None] + _PERIOD * np.arange(_STREAMS, dtype=np.int32)
    mirrored: IntArray = np.minimum(bins, _FFT_SIZE - bins)
    mirrored[[0, -1], _STREAMS // 2 :] = _FFT_SIZE // 2
    return mirrored


def _hamming() -> npt.NDArray[np.float64]:
    return 0.54 - 0.46 * np.cos(2.0 * np.pi * np.arange(FRAME_SAMPLES) / (FRAME_SAMPLES - 1))


def _mel(hertz: npt.ArrayLike) -> npt.NDArray[np.float64]:
    return np.asarray(1127.0 * np.log1p(np.asarray(hertz, dtype=np.float64) / 700.0), dtype=np.float64)


def _mel_filters() -> npt.NDArray[np.float64]:
    """Triangles [80, 257], linear in mel; the last column, the Nyquist bin, is zero."""
    edges = np.linspace(_mel(_LOW_HZ), _mel(SAMPLE_RATE / 2), _MELS + 2)
    bins = _mel(np.arange(_FFT_SIZE // 2 + 1) * SAMPLE_RATE / _FFT_SIZE)
    left, centre, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising = (bins - left) / (centre - left)
    falling = (right - bins) / (right - centre)
    return np.maximum(0.0, np.minimum(rising, falling))
