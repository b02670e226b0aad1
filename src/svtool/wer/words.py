"""Numbers with their nouns, as a report says them.

Knows counts, what was counted, and what a report's words mean. Knows nothing of how it was counted.
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


GLOSSARY = (
    (
        "WER, CER, MER",
        "Errors per 100 words (word error rate), characters (Chinese, Japanese), or both in mixed texts.",
    ),
    ("wrong, missing, extra", "Substituted, deleted and inserted words against the reference."),
    (
        "baseline, candidate",
        "What was there before, and what is judged: mostly a model and an engine made of it.",
    ),
    ("drift", "The candidate's rate minus the baseline's on the same utterances, in percentage points."),
    (
        "95 % interval",
        "Where the true value lies if these utterances stand for all; drawn again and again from them (bootstrap).",
    ),
    ("budget", "The drift that is allowed. The verdict is for the whole interval, not for its middle."),
    (
        "inconclusive",
        "The interval lies on both sides of the budget, or a value with a limit is not measured.",
    ),
    ("disagreement", "Words that the candidate changed in the baseline's texts, right or wrong."),
    ("SQNR", "Signal to quantisation noise ratio of the raw scores, in decibels: higher is closer."),
    (
        "normaliser",
        "What texts go through before they are compared: case, punctuation, width, perhaps numbers.",
    ),
    ("twin", "The ONNX file beside a plan that holds the same graph and runs without a GPU."),
)
