"""The order of the search, on evaluators whose truth is known: noise adds up over groups, or a group is poison."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from svtool.layers import LayerGroup
from svtool.search import CONFIRMED, SCORED, Found, Journal, Remembered, Signals, search

BUDGET = 0.5
GROUPS = tuple(LayerGroup(f"g{i}", (f"g{i}.a", f"g{i}.b"), 100 + i) for i in range(16))
GOOD = Signals("pass", (), 0.0, -0.1, 0.1, 1.0, 40.0, 600)


class Additive:
    """Each group brings its noise power; a map holds below 1.0. `confirm` may be noisier by a factor."""

    def __init__(self, noise: dict[str, float], *, confirm_factor: float = 1.0) -> None:
        self.noise = noise
        self.factor = confirm_factor
        self.calls: list[tuple[str, int]] = []

    def rank(self) -> dict[str, float]:
        return {name: -10 * math.log10(power) for name, power in self.noise.items()}

    def score(self, layers: Sequence[str]) -> Signals:
        return self._signals("score", layers, 1.0)

    def confirm(self, layers: Sequence[str]) -> Signals:
        return self._signals("confirm", layers, self.factor)

    def _signals(self, kind: str, layers: Sequence[str], factor: float) -> Signals:
        self.calls.append((kind, len(layers)))
        total = factor * sum(self.noise[name.split(".")[0]] for name in layers) / 2
        sqnr = -10 * math.log10(total) if total else None
        return replace(GOOD, verdict="pass" if total < 1 else "fail", drift=total / 2, sqnr_db=sqnr)


def fp16_of(found: Found) -> set[str]:
    assert found.best is not None
    return set(found.best.fp16)


def test_everything_in_int8_is_measured_once_and_confirmed_once_when_it_holds() -> None:
    evaluator = Additive({group.name: 0.01 for group in GROUPS})
    found = search(GROUPS, evaluator, BUDGET, other_macs=5)
    assert found.layers == tuple(name for group in GROUPS for name in group.layers)
    assert evaluator.calls == [("score", 32), ("confirm", 32)]
    assert [step.on for step in found.steps] == [SCORED, CONFIRMED]
    total = sum(group.macs for group in GROUPS)
    assert found.steps[0].share == pytest.approx(total / (total + 5))


def test_the_noisiest_groups_go_back_and_no_others() -> None:
    noise = {group.name: 0.01 for group in GROUPS} | {"g3": 2.0, "g9": 3.0}
    found = search(GROUPS, Additive(noise), BUDGET)
    assert fp16_of(found) == {"g3", "g9"}
    assert found.steps[-1].holds
    assert len(found.steps) <= 2 + math.ceil(math.log2(len(GROUPS))) + 3


def test_groups_that_went_back_for_nothing_come_home() -> None:
    # by noise per MAC the small group goes first, yet returning the large one alone is enough
    small, large = LayerGroup("small", ("small.a",), 1), LayerGroup("large", ("large.a",), 1000)
    rest = LayerGroup("rest", ("rest.a",), 10)
    noise = {"small": 0.2, "large": 1.5, "rest": 0.0001}
    found = search((small, large, rest), _Halved(noise), BUDGET)
    assert fp16_of(found) == {"large"}


class _Halved(Additive):
    def _signals(self, kind: str, layers: Sequence[str], factor: float) -> Signals:
        return super()._signals(kind, [name for name in layers for _ in range(2)], factor)


def test_a_twin_noisier_than_the_search_graph_costs_further_groups() -> None:
    evaluator = Additive({group.name: 0.06 for group in GROUPS}, confirm_factor=1.5)
    found = search(GROUPS, evaluator, BUDGET)
    assert found.layers is not None
    assert evaluator.confirm(found.layers).verdict == "pass"
    assert [step.holds for step in found.steps if step.on == CONFIRMED][-2:] == [False, True]


def test_nothing_holds_says_so_with_every_step_measured() -> None:
    evaluator = Additive({group.name: 40.0 for group in GROUPS})
    found = search(GROUPS, evaluator, BUDGET)
    assert found.layers is None
    assert found.steps
    assert not any(step.holds for step in found.steps)


@pytest.mark.parametrize(
    ("signals", "holds"),
    [
        (GOOD, True),
        (replace(GOOD, verdict="inconclusive"), True),  # too little data is not a reason to give up int8
        (replace(GOOD, verdict="inconclusive", drift=0.6), False),
        (replace(GOOD, verdict="fail"), False),
        (replace(GOOD, verdict="inconclusive", drift=None), False),
    ],
)
def test_what_holds(signals: Signals, holds: bool) -> None:
    assert signals.holds(BUDGET) is holds


def test_the_same_search_twice_takes_the_same_steps() -> None:
    noise = {group.name: 0.05 * (1 + i % 5) for i, group in enumerate(GROUPS)}
    first, second = (search(GROUPS, Additive(noise), BUDGET) for _ in range(2))
    assert json.dumps(first.to_json()) == json.dumps(second.to_json())


class _DiesAfter(Additive):
    def __init__(self, noise: dict[str, float], calls: int) -> None:
        super().__init__(noise)
        self.left = calls

    def _signals(self, kind: str, layers: Sequence[str], factor: float) -> Signals:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return super()._signals(kind, layers, factor)


def test_a_killed_search_goes_on_where_it_was(tmp_path: Path) -> None:
    noise = {group.name: 0.01 for group in GROUPS} | {"g3": 2.0, "g9": 3.0}

    def journal(model: str) -> Journal:
        return Journal(tmp_path / "j.json", {"model": model})

    with pytest.raises(KeyboardInterrupt):
        search(GROUPS, Remembered(_DiesAfter(noise, 3), journal("a")), BUDGET)
    rest = Additive(noise)
    resumed = journal("a")
    assert resumed.resumed == 4  # three scores and the ranking
    found = search(GROUPS, Remembered(rest, resumed), BUDGET)
    whole = search(GROUPS, Additive(noise), BUDGET)
    assert found.to_json() == whole.to_json()
    assert len(rest.calls) == len(whole.steps) - 3
    assert journal("another model").resumed == 0


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"schema": "other/1", "key": "", "entries": {"rank": 1}}']
)
def test_a_damaged_journal_is_started_anew(tmp_path: Path, content: str) -> None:
    path = tmp_path / "j.json"
    path.write_text(content)
    journal = Journal(path, {})
    assert journal.resumed == 0
    journal.put("rank", {"g": 1.0})
    assert Journal(path, {}).get("rank") == {"g": 1.0}
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(whole | {"entries": None}))
    assert Journal(path, {}).resumed == 0
    journal.remove()
    assert not path.exists()
