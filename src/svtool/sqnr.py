"""Signal-to-quantization-noise ratio of an engine's logits against the baseline's, streamed.

Knows arrays and valid lengths. Knows nothing of what produced them.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.floating]


class Sqnr:
    """Running sums over the valid frames of any number of batches; memory does not grow."""

    def __init__(self) -> None:
        self._signal = 0.0
        self._noise = 0.0
        self.frames = 0

    def add(
        self, reference: FloatArray, test: FloatArray, lengths: npt.NDArray[np.integer] | None = None
    ) -> None:
        """`reference`, `test` [B, T, V] with `lengths` i[B] valid frames, or one item [T, V]."""
        if reference.shape != test.shape:
            raise ValueError(f"cannot compare logits of shapes {reference.shape} and {test.shape}")
        if lengths is None:
            self._add_valid(reference, test)
            return
        for item, length in enumerate(lengths):
            self._add_valid(reference[item, : int(length)], test[item, : int(length)])

    def _add_valid(self, reference: FloatArray, test: FloatArray) -> None:
        exact = reference.astype(np.float64)
        self._signal += float(np.square(exact).sum())
        self._noise += float(np.square(exact - test).sum())
        self.frames += reference.shape[0] if reference.ndim else 1

    @property
    def db(self) -> float | None:
        """Decibels; `inf` for identical logits, `-inf` when either side is not finite, None for no frames."""
        if self.frames == 0:
            return None
        if not (math.isfinite(self._signal) and math.isfinite(self._noise)):
            return -math.inf
        if self._noise == 0.0:
            return math.inf
        return 10.0 * math.log10(self._signal / self._noise) if self._signal else -math.inf


def sqnr_db(reference: FloatArray, test: FloatArray) -> float | None:
    """Of two arrays of equal shape, every frame valid."""
    running = Sqnr()
    running.add(reference, test)
    return running.db
