"""What can be said of a recording by its samples alone: its digest, and faults that no text tells.

Knows samples. Knows nothing of lists, features or models.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from svtool.audio import Audio, FloatArray, decode_audio

CLIPPED_SHARE = 1e-3  # of samples at full scale: more is audible distortion
QUIET_PEAK = 0.01  # -40 dBFS: recorded far below the level of speech
ZERO_SHARE = 0.1  # of samples in runs of exact zeros: features that no microphone makes
_ZERO_RUN = 400  # samples, 25 ms: one whole frame of features
_DIGEST_CHARS = 16  # 64 bits: a million recordings share one by chance in 1 of 37 million


class Faults(NamedTuple):
    clipped: bool
    quiet: bool
    zeros: bool  # long stretches of digital silence


def audio_digest(path: Path) -> str:
    """`samples_digest` of a file. Raises AudioError."""
    return samples_digest(decode_audio(path).samples)


def samples_digest(samples: FloatArray) -> str:
    """Names a recording by what is heard: 16 hex digits of the SHA-256 of its samples f32 [N], rounded to 16 bits.

    The same for a file under another name, in another lossless container (WAV, FLAC) or sample type. Where samples
    were resampled or came out of a lossy codec, it is the same only with the same libraries: another version may
    round differently, and equal recordings then go unnoticed; different recordings are never taken for equal.
    """
    scaled = samples * np.float32(32768)
    np.rint(scaled, out=scaled)
    np.clip(scaled, -32768, 32767, out=scaled)
    return hashlib.sha256(scaled.astype("<i2").tobytes()).hexdigest()[:_DIGEST_CHARS]


def faults(audio: Audio) -> Faults:
    magnitudes = np.abs(audio.samples)
    if not len(magnitudes):
        return Faults(False, False, False)
    edges = np.flatnonzero(np.diff(magnitudes == 0, prepend=False, append=False)).reshape(-1, 2)
    runs = edges[:, 1] - edges[:, 0]
    return Faults(
        float(np.mean(magnitudes >= 0.999)) > CLIPPED_SHARE,
        float(magnitudes.max()) < QUIET_PEAK,
        int(runs[runs >= _ZERO_RUN].sum()) > ZERO_SHARE * len(magnitudes),
    )
