"""Finds the precision map with the most int8 that keeps within an accuracy budget.

Starts with every layer group in int8 and gives groups back to fp16, most noise per multiply-accumulate first, until
all signals hold; the winner is confirmed on the graph that ships. Knows groups, signals and the order of trying.
Knows nothing of graphs, audio or how a signal is measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from svtool import manifest
from svtool.progress import Progress, Silent

if TYPE_CHECKING:
    from svtool.layers import LayerGroup

SCHEMA = "svtool.search/1"
SCORED, CONFIRMED = "float32 graph with Q/DQ", "fp16 twin"
_RETRIES = 3  # groups that may be tried in int8 once more after the first map that holds


@dataclass(frozen=True)
class Signals:
    """What one map cost, as the drift gate measured it."""

    verdict: str  # "pass", "fail" or "inconclusive"
    reasons: tuple[str, ...]
    drift: float | None  # points
    low: float | None  # 95 % interval of the drift, points
    high: float | None
    disagreement: float | None  # percent
    sqnr_db: float | None  # None: not measured, or the logits are identical
    utterances: int

    def holds(self, budget: float) -> bool:
        """Too little data to prove it (`inconclusive`) is good enough to go on with; the verdict says so at the end."""
        return self.verdict != "fail" and self.drift is not None and self.drift <= budget

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Signals:
        return cls(**dict(value) | {"reasons": tuple(value["reasons"])})


@dataclass(frozen=True)
class Step:
    """One map tried. `share` is the part of all linear multiply-accumulates in int8, 0..1."""

    on: str  # which graph was measured
    fp16: tuple[str, ...]  # groups given back
    share: float
    signals: Signals
    holds: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Found:
    """`layers` is None when no map with any int8 holds; the steps then say what was measured."""

    layers: tuple[str, ...] | None
    steps: tuple[Step, ...]
    ranking: Mapping[str, float] = field(default_factory=dict)  # group -> dB with that group alone in int8

    @property
    def best(self) -> Step | None:
        """The step that was confirmed, else the last that was tried."""
        return self.steps[-1] if self.steps else None

    def to_json(self) -> dict[str, Any]:
        return {"steps": [step.to_json() for step in self.steps], "ranking_db": dict(self.ranking)}


class Evaluator(Protocol):
    """Measures maps. `layers` are exact layer names, in graph order."""

    def rank(self) -> Mapping[str, float]:
        """dB of the logits with one group alone in int8, by group name."""

    def score(self, layers: Sequence[str]) -> Signals: ...

    def confirm(self, layers: Sequence[str]) -> Signals:
        """Like `score`, on the graph that ships."""


def search(
    groups: Sequence[LayerGroup],
    evaluator: Evaluator,
    budget: float,
    *,
    other_macs: int = 0,
    progress: Progress | None = None,
) -> Found:
    """`groups` may become int8; `other_macs` never do (the logits layer, layers the user pinned).

    Tries 2 maps when everything in int8 holds, at most about 2 log2(groups) more when it does not.
    """
    return _Search(groups, evaluator, budget, other_macs, progress or Silent()).run()


class _Search:
    def __init__(
        self,
        groups: Sequence[LayerGroup],
        evaluator: Evaluator,
        budget: float,
        other_macs: int,
        progress: Progress,
    ) -> None:
        self._groups = tuple(groups)
        self._evaluator = evaluator
        self._budget = budget
        self._macs = sum(group.macs for group in groups) + other_macs
        self._progress = progress
        self._steps: list[Step] = []
        self._ranking: Mapping[str, float] = {}

    def run(self) -> Found:
        returned: tuple[LayerGroup, ...] = ()
        order: list[LayerGroup] = []
        if not self._try(SCORED, returned):
            order = self._order()
            returned = self._improved(tuple(order[: self._fewest(order)]), order)
        while len(returned) < len(self._groups):
            if self._try(CONFIRMED, returned):
                return Found(self._layers(returned), tuple(self._steps), self._ranking)
            order = order or self._order()
            rest = [group for group in order if group not in returned]
            returned = (*returned, rest[0])
        return Found(None, tuple(self._steps), self._ranking)

    def _order(self) -> list[LayerGroup]:
        """Most noise power per multiply-accumulate first."""
        self._ranking = self._evaluator.rank()
        noise = {name: 10 ** (-db / 10) for name, db in self._ranking.items()}
        return sorted(self._groups, key=lambda group: (-noise[group.name] / group.macs, group.name))

    def _fewest(self, order: Sequence[LayerGroup]) -> int:
        """How many groups of `order` must go back. Usually few: doubles from one, then halves the range that is left.

        Noise falls with each group, so what holds for some holds for more.
        """
        fails, holds = 0, len(order)
        step = 1
        while holds - fails > 1:
            tried = (
                min(fails + step, (fails + holds) // 2)
                if holds < len(order)
                else min(fails + step, holds - 1)
            )
            if self._try(SCORED, tuple(order[:tried])):
                holds = tried
            else:
                fails, step = tried, 2 * step
        return holds

    def _improved(
        self, returned: tuple[LayerGroup, ...], order: Sequence[LayerGroup]
    ) -> tuple[LayerGroup, ...]:
        """Take single groups into int8 again, largest first: the order by noise per MAC can overshoot."""
        last = returned[-1]  # without it the map was tried and failed
        for group in sorted(returned, key=lambda one: -one.macs)[:_RETRIES]:
            fewer = tuple(one for one in returned if one is not group)
            if group is not last and self._try(SCORED, fewer):
                returned = fewer
        return returned

    def _try(self, on: str, returned: Sequence[LayerGroup]) -> bool:
        layers = self._layers(returned)
        share = self._share(layers)
        self._progress.note(
            f"search: {100 * share:.1f} % of linear work in int8, measured on the {on}"
            + (f" ({len(returned)} of {len(self._groups)} groups in fp16)" if returned else "")
        )
        signals = (self._evaluator.score if on == SCORED else self._evaluator.confirm)(layers)
        holds = signals.holds(self._budget)
        self._steps.append(Step(on, tuple(group.name for group in returned), share, signals, holds))
        return holds

    def _layers(self, returned: Sequence[LayerGroup]) -> tuple[str, ...]:
        return tuple(name for group in self._groups if group not in returned for name in group.layers)

    def _share(self, layers: Sequence[str]) -> float:
        chosen = set(layers)
        macs = sum(group.macs for group in self._groups if chosen.issuperset(group.layers))
        return macs / self._macs if self._macs else 0.0


class Journal:
    """What a search has measured so far, on disk, so that a killed search goes on where it was.

    Keyed by everything the measurements depend on: a journal with another key is started anew.
    """

    def __init__(self, path: Path, key: Mapping[str, Any]) -> None:
        self._path = path
        self._key = manifest.sha256_bytes(json.dumps(key, sort_keys=True).encode())
        self._entries = self._read()
        self.resumed = len(self._entries)

    def get(self, name: str) -> Any:
        return self._entries.get(name)

    def put(self, name: str, value: Any) -> None:
        self._entries[name] = value
        manifest.write_json(self._path, {"schema": SCHEMA, "key": self._key, "entries": self._entries})

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        try:
            raw = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        known = isinstance(raw, dict) and raw.get("schema") == SCHEMA and raw.get("key") == self._key
        entries = raw.get("entries") if known else None
        return dict(entries) if isinstance(entries, dict) else {}


class Remembered:
    """An evaluator that asks the journal first."""

    def __init__(self, evaluator: Evaluator, journal: Journal) -> None:
        self._evaluator = evaluator
        self._journal = journal

    def rank(self) -> Mapping[str, float]:
        found = self._journal.get("rank")
        if found is None:
            found = dict(self._evaluator.rank())
            self._journal.put("rank", found)
        return dict(found)

    def score(self, layers: Sequence[str]) -> Signals:
        return self._signals("score", layers)

    def confirm(self, layers: Sequence[str]) -> Signals:
        return self._signals("confirm", layers)

    def _signals(self, kind: str, layers: Sequence[str]) -> Signals:
        name = f"{kind} {manifest.sha256_bytes(json.dumps(list(layers)).encode())}"
        found = self._journal.get(name)
        if found is None:
            signals: Signals = getattr(self._evaluator, kind)(layers)
            self._journal.put(name, asdict(signals))
            return signals
        return Signals.from_json(found)
