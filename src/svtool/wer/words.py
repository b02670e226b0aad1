"""Numbers with their nouns, as a report says them.

Knows counts and what was counted. Knows nothing of how it was counted.
"""

from __future__ import annotations

from svtool.wer.score import MetricName

_COUNTED = {
    "WER": ("word", "words"),
    "CER": ("character", "characters"),
    "MER": ("word or character", "words and characters"),
}


def amount(number: int, metric: MetricName) -> str:
    """What a rate counts: `1 word`, `272 words`, `95 characters`."""
    one, many = _COUNTED[metric]
    return f"{number:,} {one if number == 1 else many}"


def signed(points: float) -> str:
    """Two decimals with a sign, and no -0.00."""
    return f"{round(points, 2) + 0.0:+.2f}"


def units(metric: MetricName) -> str:
    return _COUNTED[metric][1]
