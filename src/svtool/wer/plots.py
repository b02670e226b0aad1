"""Small plots as inline SVG: a value with its interval on a common scale, and bars of a distribution.

A plot stretches with the page, so it holds lines only; every label is HTML beside it. Knows numbers and limits.
Knows nothing of reports.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from svtool.wer.elements import Html, element, joined

_HEIGHT = 24
_MOST_TICKS = 6


@dataclass(frozen=True)
class Scale:
    """Values between `low` and `high` on 0..100 % of the width."""

    low: float
    high: float

    @classmethod
    def over(cls, values: Iterable[float]) -> Scale:
        """Room for all values, and a little beside the outermost."""
        finite = [value for value in values if math.isfinite(value)] or [0.0]
        low, high = min(finite), max(finite)
        margin = 0.06 * (high - low) or 0.5
        return cls(low - margin, high + margin)

    def at(self, value: float) -> float:
        return 100.0 * min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def ticks(self) -> list[float]:
        """Round numbers, at most six."""
        rough = (self.high - self.low) / _MOST_TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * nice for nice in (1, 2, 5, 10) if power * nice >= rough)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [round(step * number, 10) + 0.0 for number in range(first, last + 1)]


@dataclass(frozen=True)
class Mark:
    """A line across the plot, e.g. the budget."""

    value: float
    kind: str


def track(
    scale: Scale,
    value: float | None,
    interval: tuple[float, float] | None = None,
    marks: Sequence[Mark] = (),
    *,
    label: str,
    filled_from: float | None = None,
) -> Html:
    """`filled_from`: draw a bar from there to the value, for values that have no interval."""
    middle = _HEIGHT / 2
    parts = [_line(scale.at(mark.value), 0, _HEIGHT, f"mark {mark.kind}") for mark in marks]
    if interval is not None:
        low, high = (scale.at(bound) for bound in interval)
        cut = "" if all(map(scale.holds, interval)) else " cut"
        parts.append(_path(f"M{low:.2f} {middle}H{high:.2f}", f"interval{cut}"))
    if value is not None and filled_from is not None:
        parts.append(_path(f"M{scale.at(filled_from):.2f} {middle}H{scale.at(value):.2f}", "bar"))
    elif value is not None:
        # a line of no length with a round cap stays round however the plot is stretched
        parts.append(_path(f"M{scale.at(value):.2f} {middle}h.001", "dot"))
    box = f"0 0 100 {_HEIGHT}"
    return element(
        "svg", *parts, class_="track", viewBox=box, preserveAspectRatio="none", role="img", aria_label=label
    )


def axis(scale: Scale, labels: Mapping[float, str]) -> Html:
    """Labels under a plot, where their values are."""
    return element(
        "div",
        *(
            element(
                "span", label, style=f"left:{scale.at(value):.2f}%", class_=_beside(scale.at(value), label)
            )
            for value, label in labels.items()
            if scale.holds(value)
        ),
        class_="axis",
        aria_hidden="true",
    )


def _beside(at: float, label: str) -> str | None:
    """Long labels near the ends do not hang over them."""
    if len(label) < 6 or 15 <= at <= 85:
        return None
    return "first" if at < 15 else "last"


def bars(heights: Sequence[tuple[str, int, str]]) -> Html:
    """(label, number, class of the colour), side by side."""
    tallest = max((number for _, number, _ in heights), default=0) or 1
    columns = []
    for label, number, kind in heights:
        drawn = element(
            "svg",
            element("rect", x="0", width="100", y=f"{100 - 100 * number / tallest:.2f}", height="100"),
            viewBox="0 0 100 100",
            preserveAspectRatio="none",
            aria_hidden="true",
        )
        count = element("b", f"{number:,}" if number else "")
        columns.append(element("div", count, drawn, element("span", label), class_=f"column {kind}"))
    return element("div", joined(*columns), class_="columns")


def _line(x: float, top: float, bottom: float, kind: str) -> Html:
    return _path(f"M{x:.2f} {top:g}V{bottom:g}", kind)


def _path(drawn: str, kind: str) -> Html:
    return element("path", d=drawn, class_=kind)
