"""What a precision search measures, each in a child process of its own: memory goes back to the system in between.

Payloads and results are plain JSON values. Knows graphs, recognizers and the drift gate. Knows nothing of the order
in which maps are tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svtool import calibration, layers, quantize, sensitivity, smooth
from svtool import graph as graphs
from svtool.assets import Assets, read_assets
from svtool.backends import load_backend
from svtool.progress import Progress
from svtool.recognizer import Options, Recognizer
from svtool.search import Signals
from svtool.utterances import UtteranceList, read_utterances
from svtool.wer.engines import LogitsComparison, Opened
from svtool.wer.gate import GateOptions, GateReport, validate
from svtool.wer.jobs import answers
from svtool.wer.sides import Answer, Side, Transcriber, collect_answers

if TYPE_CHECKING:
    pass

RANKED_ON = 16  # utterances: the order of groups settles long before their values do
_SILENT_DB = 999.0  # a group whose noise rounds to nothing


def baseline(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """What the float32 model makes of the drift list: computed once, every map is compared with it."""
    utterances = _utterances(payload)
    model = Path(payload["model"])
    with closing(_recognizer(payload, model)) as recognizer:
        side = Side(model.name, _transcriber(recognizer))
        said = collect_answers(side, utterances.utterances, progress)
    return {"answers": [asdict(answer) for answer in said]}


def rank(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """dB of the logits with one group alone in int8, for every group of the payload."""
    model = graphs.load_model(Path(payload["model"]))
    groups = layers.layer_groups(model, leave_out=payload["pinned"])
    del model
    found = sensitivity.group_sqnr(
        Path(payload["model"]),
        _samples(payload),
        calibration.read_cache(Path(payload["cache"])),
        groups,
        threads=payload["threads"],
        progress=progress,
    )
    return {"db": {name: min(db, _SILENT_DB) for name, db in found.items()}}


def reference(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """SQNR of one map with its own ranges and with plain max ranges: what bad calibration would cost.

    Scales that another tool chose come without the largest values seen: then `max_db` is None.
    """
    progress.stage("comparing with max calibration")
    ranges = calibration.read_cache(Path(payload["cache"]))
    samples = _samples(payload)
    found = {
        name: sensitivity.sqnr_of(
            Path(payload["model"]),
            samples,
            ranges,
            payload["layers"],
            use_max=use_max,
            threads=payload["threads"],
        )
        for name, use_max in (("db", False), ("max_db", True))
        if ranges.absmax or not use_max
    }
    shown = {name: min(db, _SILENT_DB) for name, db in found.items()}
    return {"max_db": None} | shown | {"utterances": len(samples)}


def score(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Signals of `graph`, or of a float32 Q/DQ graph made here from `layers` when no graph is given."""
    model = Path(payload["model"])
    utterances = _utterances(payload)
    graph = Path(payload["graph"]) if payload["graph"] else _write_candidate(payload, model)
    said = [Answer(**one | {"events": tuple(one["events"])}) for one in payload["answers"]]
    with closing(_recognizer(payload, graph)) as recognizer:
        before = Side(model.name, lambda _: enumerate(said))
        after = Side(graph.name, _transcriber(recognizer))
        report = validate(
            before,
            after,
            utterances.utterances,
            _gate_options(payload["gate"]),
            progress,
            measure_sqnr=LogitsComparison(
                Opened(before, recognizer, model), Opened(after, recognizer, graph), Options()
            ),
        )
    return asdict(signals_of(report))


def signals_of(report: GateReport) -> Signals:
    whole, sqnr = report.whole, report.sqnr_db
    return Signals(
        verdict=report.verdict,
        reasons=report.reasons,
        drift=whole.drift,
        low=whole.interval.low if whole.interval else None,
        high=whole.interval.high if whole.interval else None,
        disagreement=report.disagreement,
        sqnr_db=sqnr if sqnr is not None and math.isfinite(sqnr) else None,
        utterances=whole.utterances,
    )


def _gate_options(gate: Mapping[str, Any]) -> GateOptions:
    where = gate["disagreement_where"]
    return GateOptions(**dict(gate) | {"disagreement_where": tuple(where) if where else None, "columns": ()})


def _write_candidate(payload: Mapping[str, Any], model_path: Path) -> Path:
    path = Path(payload["work"]) / "candidate.onnx"
    ranges = calibration.read_cache(Path(payload["cache"]))
    model = graphs.load_model(model_path)
    if ranges.exponents:
        model = smooth.smooth(model, ranges.exponents)
    model = quantize.to_int8(model, ranges.amax, layers=payload["layers"])
    graphs.save_model(model, path)
    return path


def _recognizer(payload: Mapping[str, Any], graph: Path) -> Recognizer:
    return Recognizer(load_backend(graph, threads=payload["threads"]), _assets(payload), artifact=graph)


def _transcriber(recognizer: Recognizer) -> Transcriber:
    return lambda utterances: answers(recognizer, utterances, Options())


def _assets(payload: Mapping[str, Any]) -> Assets:
    folder = Path(payload["model"]).parent
    return read_assets(folder, name=folder.resolve().name)


def _utterances(payload: Mapping[str, Any]) -> UtteranceList:
    found = read_utterances(payload["data"])
    return found.take(payload["limit"]) if payload["limit"] else found


def _samples(payload: Mapping[str, Any]) -> list[calibration.Sample]:
    chosen = _utterances(payload).take(RANKED_ON)
    read = calibration.read_samples(chosen, _assets(payload))
    return [one for one in read if isinstance(one, calibration.Sample)]
