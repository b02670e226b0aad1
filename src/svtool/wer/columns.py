"""Labels of utterances from any column of their list: few enough for a table, numbers in ranges.

Knows the columns of a list. Knows nothing of scores.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from svtool.errors import UsageError
from svtool.wer.groups import UNLABELLED, cell

if TYPE_CHECKING:
    from svtool.utterances import Utterance

_PLAIN = ("language", "emotion")
MOST_LABELS = 40
_MOST_NUMBERS = 12  # different ones; more are put in ranges
_RANGES = 4


def require_columns(utterances: Sequence[Utterance], columns: Sequence[str]) -> None:
    """A column that no utterance has is a mistake in the command, not a group of its own."""
    known = dict.fromkeys(name for one in utterances for name in one.extra)
    present = [name for name in _PLAIN if any(getattr(one, name) for one in utterances)]
    for column in columns:
        if column not in known and column not in present:
            raise UsageError(
                f"the list has no column {column!r} to break down by: it has {', '.join([*present, *known]) or 'none'}"
            )


def labels_of(utterances: Sequence[Utterance], column: str) -> tuple[list[str], tuple[str, ...]]:
    """A label per utterance, and those labels that have an order."""
    labels = [cell(one, column) for one in utterances]
    occurrences = Counter(labels)
    numbers = {label: _number(label) for label in occurrences if label != UNLABELLED}
    if numbers and all(value is not None for value in numbers.values()):
        values = {label: value for label, value in numbers.items() if value is not None}
        if len(values) > _MOST_NUMBERS:
            return _in_ranges(labels, values)
        return labels, tuple(sorted(values, key=values.__getitem__))
    if len(occurrences) <= MOST_LABELS:
        return labels, ()
    kept = {label for label, _ in occurrences.most_common(MOST_LABELS - 1)}
    rest = f"({len(occurrences) - len(kept):,} others)"
    return [label if label in kept else rest for label in labels], ()


def _number(label: str) -> float | None:
    try:
        value = float(label)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _in_ranges(labels: Sequence[str], values: dict[str, float]) -> tuple[list[str], tuple[str, ...]]:
    """Quarters of the utterances, named by their smallest and largest value."""
    present = np.array([values[label] for label in labels if label in values])
    edges = np.quantile(present, np.linspace(0, 1, _RANGES + 1)[1:-1])
    parts = {label: int(np.searchsorted(edges, value)) for label, value in values.items()}
    names = {}
    for part in sorted(set(parts.values())):
        inside = [values[label] for label in parts if parts[label] == part]
        names[part] = f"{min(inside):g} to {max(inside):g}"
    return [names[parts[label]] if label in parts else UNLABELLED for label in labels], tuple(names.values())
