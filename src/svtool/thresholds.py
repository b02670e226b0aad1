"""Where to clip a tensor for int8: from a histogram of its magnitudes to one number. Pure numpy.

Magnitudes are counted in log-spaced bins, so that a histogram needs no range chosen before the audio is heard and
adds up over any number of utterances. Knows nothing of graphs, audio or files.

With T the clipping point, s = T / 127 the step, h_b the counts and c_b the centre of bin b (|x| uniform inside it):

percentile  T = the magnitude below which P percent of all values lie
mse         T minimising  sum_b h_b (c_b - q(c_b))^2,  q(c) = s min(127, round(c / s)):  rounding grows with T,
            clipping falls with it
entropy     T minimising  sum_i p_i log(p_i / q_i),  the divergence TensorRT's second calibrator looks at: [0, T] in
            2048 equal cells, p_i their share with everything beyond T added to the last; q_i what 128 levels of 16
            cells leave of it: each level's own mass (without what lies beyond T) spread evenly over its cells that
            are not empty; a level that holds nothing but what was clipped counts as one value. Cells are cut anew
            for each T, so one far outlier does not make them coarse. The sum is flat where clipping no longer
            matters: of all T within 0.005 nats of the least, the smallest is taken, for its finer step.

The last two try T in steps of 2 % from the 90th percentile of what is not zero up to the largest value; zeros are
exact under every scale and count for neither.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

INT8_MAX = 127
_SHIFT = 14  # drops the low bits of a float32: 512 bins per octave, each 0.1 to 0.2 % wide
_LOWEST, _HIGHEST = (
    -24,
    24,
)  # octaves counted apart; what is smaller counts as zero, what is larger as the last bin
_BASE = (127 + _LOWEST) << (23 - _SHIFT)
BINS = ((_HIGHEST - _LOWEST) << (23 - _SHIFT)) + 1  # bin 0 is "zero"
_NOT_FINITE = 0x7F80_0000 >> _SHIFT
_STEP = 2 ** (1 / 32)
_LEVELS, _CELLS = 128, 2048
_NEAR = 0.005  # nats
_TYPICAL = 90.0  # percentile from which clipping points are tried
_CHUNK = 1 << 20  # entries of the error matrix at a time, 8 MB


def count(values: npt.NDArray[np.float32]) -> Counts | None:
    """Counts [BINS] of |values|, whatever their shape; None when one is not finite."""
    bins = (np.abs(values.ravel()).view(np.uint32) >> _SHIFT).astype(np.intp)
    if bins.size and int(bins.max()) >= _NOT_FINITE:
        return None
    return np.bincount(np.clip(bins - (_BASE - 1), 0, BINS - 1), minlength=BINS)


def percentile(counts: Counts, percent: float) -> float:
    """Upper edge of the bin in which the percentile lies; inf when that is the last one, which has none."""
    reached = int(np.searchsorted(np.cumsum(counts), percent / 100 * counts.sum()))
    return float(_edges()[reached + 1]) if reached < BINS - 1 else float("inf")


def mse(counts: Counts, largest: float) -> float:
    points = _candidates(counts, largest)
    filled = np.flatnonzero(counts[1:]) + 1
    edges = _edges()
    upper = np.minimum(edges[filled + 1], largest)
    centres, weights = (edges[filled] + np.maximum(upper, edges[filled])) / 2, counts[filled].astype(float)
    errors = np.empty(len(points))
    rows = max(1, _CHUNK // max(1, len(filled)))
    for start in range(0, len(points), rows):
        steps = points[start : start + rows, None] / INT8_MAX
        restored = np.minimum(np.rint(centres / steps), INT8_MAX) * steps
        errors[start : start + rows] = np.square(centres - restored) @ weights
    return float(points[errors.argmin()])


def entropy(counts: Counts, largest: float) -> float:
    points = _candidates(counts, largest)
    edges, below = _edges().copy(), np.concatenate([[0, 0], np.cumsum(counts[1:], dtype=float)])
    top = int(np.flatnonzero(counts).max(initial=0))
    edges[top + 1] = max(edges[top], min(edges[top + 1], largest))  # nothing lies beyond the largest value
    edges[top + 2 :] = np.inf
    reach = edges[: top + 2], below[: top + 2]
    divergences = [
        _divergence(np.interp(np.linspace(0, point, _CELLS + 1), *reach), reach[1][-1]) for point in points
    ]
    near = np.flatnonzero(np.array(divergences) <= min(divergences) + _NEAR)
    return float(points[near[0]])


def _divergence(below: FloatArray, total: float) -> float:
    """Of [0, T] seen in cells against the same seen in levels; `below` counts at the cells' edges [_CELLS + 1]."""
    inside = np.diff(below)
    reference = inside.copy()
    reference[-1] += total - below[-1]
    present = reference > 0
    levels = inside.reshape(_LEVELS, -1)
    alive = present.reshape(_LEVELS, -1)
    masses = np.where(levels.any(1), levels.sum(1), 1.0)
    spread = masses / np.maximum(1, alive.sum(1))
    seen = (alive * spread[:, None]).ravel()[present]
    shares = reference[present] / total
    return float((shares * np.log(shares / (seen / seen.sum()))).sum())


def _candidates(counts: Counts, largest: float) -> FloatArray:
    """Clipping points in steps of 2 %, `largest` the last of them."""
    nonzero = counts.copy()
    nonzero[0] = 0
    if not nonzero.any():
        return np.array([largest])
    least = min(percentile(nonzero, _TYPICAL), largest)
    steps = int(np.ceil(np.log(largest / least) / np.log(_STEP)))
    return np.array(largest * _STEP ** np.arange(-steps, 1, dtype=float))


def _edges() -> FloatArray:
    """Lower edges of all bins, and the upper one of the last [BINS + 1]."""
    bits = (np.arange(_BASE, _BASE + BINS, dtype=np.uint32) << _SHIFT).view(np.float32)
    return np.concatenate([[0.0], bits.astype(float)])
