"""`svtool validate-wer`: which two artifacts, on what data, held to which limits. Scoring is `gate.py`'s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from svtool import tiny as tiny_speech
from svtool.artifacts import MODEL_NAME, TINY_MODEL, is_tiny, listed
from svtool.assets import parse_language
from svtool.config import Config, GateConfig, load_config
from svtool.errors import ArtifactError, UsageError
from svtool.manifest import manifest_path, read_manifest
from svtool.progress import Progress
from svtool.recognizer import Options
from svtool.utterances import UtteranceList, read_utterances
from svtool.wer.columns import require_columns
from svtool.wer.engines import LogitsComparison, Opened, open_side
from svtool.wer.gate import GateOptions, GateReport, validate
from svtool.wer.overlap import overlap_notes
from svtool.wer.rates import RatesReport, measure
from svtool.wer.saved import named as saved_texts
from svtool.wer.saved import open_saved
from svtool.wer.score import Korean
from svtool.wer.sides import Role, Side

_TINY_DATA = "tiny:drift"
_SQNR_MARGIN_DB = 3.0


@dataclass(frozen=True)
class Request:
    baseline: Path | None
    candidate: Path | None
    data: str | None
    budget: float | None
    max_disagreement: float | None
    min_sqnr: float | None
    limit: int | None
    language: str
    normaliser: str
    config: Path | None
    device: str
    threads: int | None
    allow_overlap: bool = False  # with the audio that an engine was calibrated on
    results: Path | None = None  # every answer is kept here, and found here again
    jobs: int = 1  # processes, on a CPU
    columns: tuple[str, ...] = ()  # of the list, to break rates down by
    korean: Korean = "words"


def run(request: Request, progress: Progress) -> GateReport:
    """Compare two sides. Raises UsageError when it is not clear which, or on what data."""
    baseline, candidate = _pair(request.baseline, request.candidate, progress)
    work = _prepared(request, [baseline, candidate], progress)
    with ExitStack() as stack:
        opened = _opened(work, {"baseline": baseline, "candidate": candidate}, stack)
        before, after = opened.values()
        logits = None
        if isinstance(before, Opened) and isinstance(after, Opened):
            logits = LogitsComparison(before, after, work.options)
        sides = [
            _side(one, work.overlap, path)
            for one, path in zip(opened.values(), (baseline, candidate), strict=True)
        ]
        limits = _limits(request, work.config, tiny=work.tiny)
        return validate(
            sides[0],
            _without_limit(sides[1], candidate, limits) if logits else sides[1],
            work.utterances.utterances,
            _gate_options(work, limits, candidate if logits else None),
            progress,
            measure_sqnr=logits,
            results=request.results,
        )


def run_alone(request: Request, progress: Progress) -> RatesReport:
    """One side against the references: what `--references-only` asks for."""
    named = [one for one in (request.baseline, request.candidate) if one is not None]
    if len(named) != 1:
        raise UsageError(
            "--references-only takes one artifact: svtool validate-wer ENGINE --data LIST --references-only"
        )
    compared = {
        "--budget": request.budget,
        "--max-disagreement": request.max_disagreement,
        "--min-sqnr": request.min_sqnr,
    }
    if given := [name for name, value in compared.items() if value is not None]:
        raise UsageError(
            f"{', '.join(given)} limits a comparison, and --references-only has no baseline: leave it out"
        )
    artifact = _model_of(named[0])
    work = _prepared(request, [artifact], progress)
    with ExitStack() as stack:
        (opened,) = _opened(work, {"candidate": artifact}, stack).values()
        return measure(
            _side(opened, work.overlap, artifact),
            work.utterances.utterances,
            _gate_options(work, GateConfig(), None),
            progress,
            results=request.results,
        )


@dataclass(frozen=True)
class _Work:
    """A request with everything read that both kinds of run need."""

    request: Request
    config: Config
    options: Options
    data: str
    utterances: UtteranceList
    overlap: Mapping[Path, str]
    tiny: bool


def _prepared(request: Request, sides: Sequence[Path], progress: Progress) -> _Work:
    artifacts = [one for one in sides if saved_texts(one) is None]
    tiny = any(map(is_tiny, artifacts[:1]))
    data = request.data or (_TINY_DATA if tiny else None)
    if data is None:
        raise UsageError("no data to validate on: name an utterance list with reference texts, --data LIST")
    if request.jobs < 1:
        raise UsageError(f"--jobs {request.jobs}: give 1 or more")
    tiny_speech.render_named(data, progress)
    utterances = read_utterances(data)
    if request.limit:
        utterances = utterances.take(request.limit)
    require_columns(utterances.utterances, request.columns)
    return _Work(
        request,
        load_config(request.config) if request.config else Config(),
        Options(language=parse_language(request.language)),
        data,
        utterances,
        overlap_notes(artifacts, utterances.utterances, allowed=request.allow_overlap, progress=progress),
        tiny,
    )


def _opened(work: _Work, sides: Mapping[Role, Path], stack: ExitStack) -> dict[Role, Opened | Side]:
    request, found = work.request, dict[Role, Opened | Side]()
    for role, path in sides.items():
        saved = saved_texts(path)
        if saved is not None:
            found[role] = open_saved(saved, work.utterances, role)
            continue
        opening = open_side(
            path,
            work.options,
            device=request.device,
            threads=request.threads,
            settings=work.config.onnxruntime,
            jobs=request.jobs,
        )
        found[role] = stack.enter_context(opening)
    return found


def _side(opened: Opened | Side, overlap: Mapping[Path, str], path: Path) -> Side:
    return _noted(opened.side if isinstance(opened, Opened) else opened, overlap.get(path))


def _noted(side: Side, note: str | None) -> Side:
    return side if note is None else replace(side, note="; ".join(filter(None, (side.note, note))))


def _pair(baseline: Path | None, candidate: Path | None, progress: Progress) -> tuple[Path, Path]:
    if baseline is not None and candidate is not None:
        return _model_of(baseline), _model_of(candidate)
    if baseline is not None:
        raise UsageError(
            f"one artifact is not a comparison: svtool validate-wer {baseline} CANDIDATE --data LIST, or add "
            "--references-only for its rates alone"
        )
    if not TINY_MODEL.is_file():
        raise ArtifactError(f"{TINY_MODEL} does not exist: make it with  svtool export tiny")
    engines = [
        artifact for artifact, manifest in listed(TINY_MODEL.parent) if manifest.get("kind") == "engine"
    ]
    if not engines:
        raise ArtifactError(f"no engine beside {TINY_MODEL}: make one with  svtool build-trt --int8")
    progress.note(f"comparing {engines[0]} with {TINY_MODEL}")
    return TINY_MODEL, engines[0]


def _model_of(artifact: Path) -> Path:
    model = artifact / MODEL_NAME
    return model if model.is_file() else artifact


def _relative_limit(candidate: Path) -> tuple[float, str] | None:
    """What plain max calibration reaches, less a margin: an absolute SQNR does not carry over between models."""
    described = read_manifest(candidate) if manifest_path(candidate).is_file() else {}
    for part, words in (("search", "the same layers"), ("calibration", "every layer")):
        reached = ((described.get(part) or {}).get("sqnr") or {}).get("max_db")
        if isinstance(reached, int | float):
            why = f"{_SQNR_MARGIN_DB:g} dB under the {reached:.1f} dB of max calibration with {words} in int8"
            return max(0.0, reached - _SQNR_MARGIN_DB), why
    return None


def _without_limit(candidate: Side, path: Path, limits: GateConfig) -> Side:
    """Int8 whose logits nothing holds to anything is said to be so."""
    if candidate.conditions.get("precision") != "int8" or limits.min_sqnr_db is not None:
        return candidate
    if _relative_limit(path) is not None:
        return candidate
    return _noted(
        candidate,
        "its manifest tells no SQNR of max calibration, so its logits are held to no limit: give one with --min-sqnr",
    )


def _limits(request: Request, config: Config, *, tiny: bool) -> GateConfig:
    found = config.gate_tiny if tiny else config.gate
    return GateConfig(
        found.drift_budget if request.budget is None else request.budget,
        found.max_disagreement if request.max_disagreement is None else request.max_disagreement,
        found.min_sqnr_db if request.min_sqnr is None else request.min_sqnr,
    )


def _gate_options(work: _Work, limits: GateConfig, measured: Path | None) -> GateOptions:
    """`measured`: the candidate whose logits are compared; None where there are none, and so no limit on them."""
    request, data = work.request, {"list": work.data, "sha256": work.utterances.digest}
    if request.results is not None:
        data["results"] = str(request.results)
    least, why = limits.min_sqnr_db, None
    if measured is None:
        least = request.min_sqnr
    elif least is None and (relative := _relative_limit(measured)) is not None:
        least, why = relative
    own = ("subset",) if work.data == _TINY_DATA else ()
    return GateOptions(
        budget=limits.drift_budget,
        max_disagreement=limits.max_disagreement,
        # the tiny model's limit was set on its hardest part, where quantization shows first
        disagreement_where=("subset", "5db") if work.data == _TINY_DATA else None,
        min_sqnr_db=least,
        min_sqnr_why=why,
        normaliser=request.normaliser,
        korean=request.korean,
        columns=tuple(dict.fromkeys((*own, *request.columns))),
        data=data,
        notes=work.utterances.notes,
    )
