"""What `inspect` reads out of files that anybody may have written: a search, its journal, a calibration, a parity.

Takes no field on trust: one of another type reads as an absent one. Knows nothing of graphs and of how any of it is
measured or shown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from svtool.errors import counted
from svtool.search import CONFIRMED, SCORED

IMPORTED = "imported"
# of logits on random features, dB against float32; builds refuse far lower ones, and good engines stand well above
POOR_DB = {"int8": 20.0, "int8-weights": 30.0, "fp16": 40.0}
_VERDICTS = ("pass", "inconclusive", "fail")
_ON = {"score": SCORED, "confirm": CONFIRMED}


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def number(value: Any) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable else None


def quantity(value: Any, noun: str) -> str:
    """`1 node`, `2,400 frames`; a count that is none is said to be unknown."""
    return counted(value, noun) if isinstance(value, int) else f"an unknown number of {noun}s"


def search_facts(described: Mapping[str, Any]) -> dict[str, Any] | None:
    """Of a manifest: the limits, the map that was kept and what it cost; None where nothing was searched."""
    block = mapping(described.get("search"))
    steps = [mapping(one) for one in listed(block.get("steps"))]
    if not steps:
        return None
    gate, kept = mapping(block.get("gate")), steps[-1]  # the last one was confirmed
    limits = {key: number(gate.get(key)) for key in ("budget", "max_disagreement", "min_sqnr_db")}
    reference = mapping(block.get("sqnr"))
    return (
        _signals(kept.get("signals"))
        | limits
        | {
            "on": kept.get("on"),
            "data": mapping(gate.get("data")).get("list"),
            "fp16": [str(one) for one in listed(kept.get("fp16"))],
            "measured": len(steps),
            "kept_within": sum(one.get("holds") is True for one in steps),
            "ranges_db": number(reference.get("db")),
            "max_ranges_db": number(reference.get("max_db")),
        }
    )


def journal_facts(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Of a search that has not ended. Which layers a map had cannot be told: a journal keeps digests of their names."""
    entries = mapping(raw.get("entries"))
    tried = []
    for name, value in entries.items():
        kind, _, layers = name.partition(" ")
        if kind in _ON and isinstance(value, Mapping):
            tried.append(_signals(value) | {"on": _ON[kind], "layers": layers})
    best = min(tried, key=_cost, default=None)
    ranking = {
        name: db for name, value in mapping(entries.get("rank")).items() if (db := number(value)) is not None
    }
    return {
        "baseline": len(listed(entries.get("baseline"))),
        "measured": len(tried),
        "maps": len({one["layers"] for one in tried}),
        "verdicts": dict(Counter(str(one["verdict"]) for one in tried)),
        "best": {key: value for key, value in best.items() if key != "layers"} if best else None,
        "ranking_db": dict(sorted(ranking.items(), key=lambda pair: pair[1])),
    }


def _signals(value: Any) -> dict[str, Any]:
    """A search's signals under the names that `validate-wer` reports have."""
    found = mapping(value)
    names = {"drift_points": "drift", "ci_low": "low", "ci_high": "high"}
    names |= {name: name for name in ("disagreement", "sqnr_db")}
    utterances = found.get("utterances")
    return {
        "verdict": found.get("verdict"),
        **{name: number(found.get(key)) for name, key in names.items()},
        "utterances": utterances if isinstance(utterances, int) else None,
        "reasons": [str(one) for one in listed(found.get("reasons"))],
    }


def _cost(signals: Mapping[str, Any]) -> tuple[int, float, float]:
    """Best verdict first, then least drift, then least noise; no SQNR means that nothing differs."""
    verdict, drift, decibels = (signals[key] for key in ("verdict", "drift_points", "sqnr_db"))
    place = _VERDICTS.index(verdict) if verdict in _VERDICTS else len(_VERDICTS)
    return place, math.inf if drift is None else drift, -math.inf if decibels is None else -decibels


def calibration_findings(facts: Mapping[str, Any]) -> Iterator[str]:
    """What its own warnings say, and what they would say: caches of other versions have fewer."""
    from svtool.calibration import MIN_SECONDS, MIN_UTTERANCES, MOST_LOSS_DB
    from svtool.frontend import LFR_FRAME_S

    if not facts:
        return
    warnings = [str(one) for one in listed(facts.get("warnings"))]
    said = " ".join(warnings)
    yield from warnings
    used, frames = facts.get("used"), facts.get("frames")
    if facts.get("method") == IMPORTED and not used:
        yield "the ranges were never measured: another tool chose the scales, and no audio was heard"
    elif "used only" not in said:
        if isinstance(used, int) and used < MIN_UTTERANCES:
            yield f"used only {counted(used, 'utterance')}; ranges want at least {MIN_UTTERANCES}"
        if isinstance(frames, int) and frames * LFR_FRAME_S < MIN_SECONDS:
            yield f"used only {frames * LFR_FRAME_S:.1f} s of audio; ranges want at least {MIN_SECONDS:.0f} s"
    sqnr = mapping(facts.get("sqnr"))
    mine, best = number(sqnr.get("db")), number(sqnr.get("max_db"))
    lost = best - mine if mine is not None and best is not None else 0.0
    if lost > MOST_LOSS_DB and "worse than with max ranges" not in said:
        yield f"int8 with these ranges is {lost:.1f} dB worse than with max ranges on the same audio: they clip speech"


def parity_finding(described: Mapping[str, Any], precision: str | None) -> str | None:
    decibels, least = number(mapping(described.get("parity")).get("sqnr_db")), POOR_DB.get(str(precision))
    if decibels is None or least is None or decibels >= least:
        return None
    return (
        f"the graph resembles float32 poorly: {decibels:.1f} dB on random features, {precision} engines reach "
        f"{least:g} and more"
    )
