"""`build-trt --drift-budget`: the precision search over real graphs and real speech.

Each measurement runs in a child process and is remembered on disk, so that a search that was stopped goes on where
it was. Knows what is measured and where results are kept. Knows nothing of the order of trying (`search`) or of
how a plan is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from svtool import __version__, manifest
from svtool.calibration import MOST_LOSS_DB, read_cache
from svtool.child import Finished, run_child
from svtool.config import GateConfig
from svtool.errors import ArtifactError, SvtoolError, counted
from svtool.lists import some
from svtool.parity import INT8_TRUE_FROM, onnxruntime_version
from svtool.progress import Progress
from svtool.search import Found, Journal, Remembered, Signals, search
from svtool.source import Source

Prepare = Callable[[Sequence[str]], Finished]  # layers -> the twin and the graph, written


@dataclass(frozen=True)
class Budget:
    """What an engine may cost, and the utterances with reference texts that it is measured on."""

    limits: GateConfig
    data: str
    judged: tuple[str, str] | None = None  # column and value: disagreement is judged there
    limit: int | None = None  # use this many utterances, spread evenly
    seed: int = 0  # of the bootstrap


@dataclass(frozen=True)
class Searched:
    found: Found
    prepared: Finished  # of the layers found
    facts: Mapping[str, Any]  # for the manifest

    @property
    def verdict(self) -> str:
        best = self.found.best
        return best.signals.verdict if best is not None else "fail"


def find_map(
    source: Source,
    budget: Budget,
    *,
    cache: Path,
    twin: Path,
    work: Path,
    journal: Path,
    prepare: Prepare,
    threads: int | None,
    progress: Progress,
) -> Searched:
    """The map with the most int8 that keeps within the budget. Raises SvtoolError when none does.

    `journal` is removed by the caller once the engine stands: until then a second run goes on from it.
    """
    _check_runtime()
    payload = _payload(source, budget, cache, work, threads)
    pages = Journal(journal, _key(source, budget, payload, cache))
    if pages.resumed:
        progress.note(
            f"going on with the search in {journal}: {pages.resumed} measurements are there already"
        )
    if pages.get("baseline") is None:
        pages.put("baseline", run_child("search_worker:baseline", payload, progress).value["answers"])
    measured = _Measured(payload | {"answers": pages.get("baseline")}, prepare, twin, progress)
    found = search(
        source.groups,
        Remembered(measured, pages),
        budget.limits.drift_budget,
        other_macs=source.other_macs,
        progress=progress,
    )
    if found.layers is None:
        raise SvtoolError(_nothing_holds(source, budget, found, journal))
    prepared = measured.prepared_as(found.layers) or prepare(found.layers)
    progress.note("search: what would plain max calibration give for this map?")
    reference = run_child("search_worker:reference", payload | {"layers": list(found.layers)}, progress).value
    _check_reference(source, cache, reference)
    return Searched(found, prepared, _facts(budget, payload, found, reference))


def overlap_warning(budget: Budget, cache: Path, progress: Progress) -> str | None:
    """What to say when the search would be judged by audio that the ranges were measured on."""
    from svtool.utterances import read_utterances
    from svtool.wer.overlap import shared_ids

    utterances = read_utterances(budget.data)
    judged = utterances.take(budget.limit) if budget.limit else utterances
    shared = shared_ids(read_cache(cache).audio_digests, judged.utterances, progress)
    if not shared:
        return None
    return (
        f"{len(shared):,} of {counted(len(judged), 'utterance')} of {budget.data} calibrated the engine too "
        f"({some(shared)}): the drift found there flatters it, and validate-wer refuses them; use another --drift-data"
    )


class _Measured:
    """The evaluator of one search: every call is a child process."""

    def __init__(self, payload: Mapping[str, Any], prepare: Prepare, twin: Path, progress: Progress) -> None:
        self._payload = dict(payload)
        self._prepare = prepare
        self._twin = twin
        self._progress = progress
        self._last: tuple[tuple[str, ...], Finished] | None = None

    def rank(self) -> Mapping[str, float]:
        self._progress.note("search: which layer groups does int8 hurt most?")
        found: Mapping[str, float] = run_child("search_worker:rank", self._payload, self._progress).value[
            "db"
        ]
        return found

    def score(self, layers: Sequence[str]) -> Signals:
        return self._score(layers, None)

    def confirm(self, layers: Sequence[str]) -> Signals:
        self._last = (tuple(layers), self._prepare(layers))
        return self._score(layers, self._twin)

    def prepared_as(self, layers: Sequence[str]) -> Finished | None:
        """What `confirm` prepared, when its files are still those of `layers`."""
        return self._last[1] if self._last is not None and self._last[0] == tuple(layers) else None

    def _score(self, layers: Sequence[str], graph: Path | None) -> Signals:
        job = self._payload | {"layers": list(layers), "graph": str(graph) if graph else None}
        signals = Signals.from_json(run_child("search_worker:score", job, self._progress).value)
        self._progress.note(f"search: {describe(signals)}")
        return signals


def describe(signals: Signals) -> str:
    parts = [signals.verdict]
    if signals.drift is not None and signals.low is not None and signals.high is not None:
        parts.append(f"drift {signals.drift:+.2f} points (95 % {signals.low:+.2f} to {signals.high:+.2f})")
    if signals.disagreement is not None:
        parts.append(f"disagreement {signals.disagreement:.2f} %")
    if signals.sqnr_db is not None:
        parts.append(f"SQNR {signals.sqnr_db:.1f} dB")
    return ", ".join(parts)


def _payload(source: Source, budget: Budget, cache: Path, work: Path, threads: int | None) -> dict[str, Any]:
    from svtool.utterances import read_utterances

    limits = budget.limits
    return {
        "model": str(source.path),
        "cache": str(cache),
        "data": budget.data,
        "limit": budget.limit,
        "work": str(work),
        "threads": threads,
        "pinned": list(source.pinned),
        "gate": {
            "budget": limits.drift_budget,
            "max_disagreement": limits.max_disagreement,
            "min_sqnr_db": limits.min_sqnr_db,
            "disagreement_where": budget.judged,
            "seed": budget.seed,
            "data": {"list": budget.data, "sha256": read_utterances(budget.data).digest},
        },
    }


def _key(source: Source, budget: Budget, payload: Mapping[str, Any], cache: Path) -> dict[str, Any]:
    """Everything that a measurement depends on."""
    return {
        "tool": __version__,
        "onnxruntime": onnxruntime_version(),
        "model": source.digest,
        "cache": manifest.sha256_file(cache),
        "gate": payload["gate"],
        "limit": budget.limit,
        "pinned": payload["pinned"],
    }


def _check_runtime() -> None:
    here = onnxruntime_version()
    if tuple(int(part) for part in here.split(".")[:2]) < INT8_TRUE_FROM:
        least = ".".join(map(str, INT8_TRUE_FROM))
        raise ArtifactError(
            f"onnxruntime {here} scores fp16 graphs with int8 layers wrongly, so no search can trust it: "
            f"install {least} or newer (Python 3.11 or newer has it), or build without --drift-budget"
        )


def _check_reference(source: Source, cache: Path, reference: Mapping[str, Any]) -> None:
    """An absolute SQNR does not carry over between models; what clipping costs against plain max ranges does."""
    if reference["max_db"] is not None and reference["db"] < reference["max_db"] - MOST_LOSS_DB:
        raise ArtifactError(
            f"with the map found for {source.path}, the ranges of {cache} reach {reference['db']:.1f} dB and plain max "
            f"ranges {reference['max_db']:.1f} dB: they clip speech. Calibrate again with  svtool calibrate "
            "--method max --data LIST"
        )


def _facts(
    budget: Budget, payload: Mapping[str, Any], found: Found, reference: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "gate": payload["gate"],
        "limit": budget.limit,
        "sqnr": dict(reference),
    } | found.to_json()


def _nothing_holds(source: Source, budget: Budget, found: Found, journal: Path) -> str:
    """Which limit stood in the way, how near the best map came, and what to change."""
    limits = budget.limits
    best = max(found.steps, key=lambda step: _nearness(step.signals, limits))
    options = [name for name, over in _over_limits(best.signals, limits).items() if over]
    change = f"allow more with {' and '.join(options)}, " if options else ""
    reasons = "; ".join(best.signals.reasons)
    return (
        f"no int8 map of {source.path} keeps within its limits on {budget.data}: the best of "
        f"{counted(len(found.steps), 'map')} tried, with {100 * best.share:.1f} % of linear work in int8, "
        f"gave {describe(best.signals)} ({reasons}). "
        f"To go on, {change}calibrate on other audio, or build in half precision with  svtool build-trt "
        f"{source.path} --fp16 ; all measurements are in {journal}"
    )


def _over_limits(signals: Signals, limits: GateConfig) -> dict[str, bool]:
    """Options whose limit the signals break."""
    drift, disagreement, sqnr = signals.drift, signals.disagreement, signals.sqnr_db
    most, least = limits.max_disagreement, limits.min_sqnr_db
    return {
        "--drift-budget": drift is None or drift > limits.drift_budget,
        "--max-disagreement": most is not None and disagreement is not None and disagreement > most,
        "--min-sqnr": least is not None and sqnr is not None and sqnr < least,
    }


def _nearness(signals: Signals, limits: GateConfig) -> tuple[int, float, float]:
    """Fewer broken limits first, then less drift, then a better SQNR."""
    broken = sum(_over_limits(signals, limits).values())
    return (-broken, -max(0.0, signals.drift or 0.0), signals.sqnr_db or 0.0)
