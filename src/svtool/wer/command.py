"""`svtool validate-wer`: which two artifacts, on what data, held to which limits. Scoring is `gate.py`'s."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from svtool import tiny as tiny_speech
from svtool.artifacts import MODEL_NAME, TINY_MODEL, is_tiny, listed
from svtool.assets import parse_language
from svtool.config import Config, GateConfig, load_config
from svtool.errors import ArtifactError, UsageError
from svtool.progress import Progress
from svtool.recognizer import Options
from svtool.utterances import UtteranceList, read_utterances
from svtool.wer.engines import LogitsComparison, open_side
from svtool.wer.gate import GateOptions, GateReport, validate

_TINY_DATA = "tiny:drift"


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


def run(request: Request, progress: Progress) -> GateReport:
    """Compare two artifacts. Raises UsageError when it is not clear which, or on what data."""
    baseline, candidate = _pair(request.baseline, request.candidate, progress)
    tiny = is_tiny(baseline)
    data = request.data or (_TINY_DATA if tiny else None)
    if data is None:
        raise UsageError("no data to validate on: name an utterance list with reference texts, --data LIST")
    tiny_speech.render_named(data, progress)
    utterances = read_utterances(data)
    if request.limit:
        utterances = utterances.take(request.limit)
    config = load_config(request.config) if request.config else Config()
    limits = _limits(request, config, tiny=tiny)
    options = Options(language=parse_language(request.language))
    with ExitStack() as stack:
        sides = [
            stack.enter_context(
                open_side(
                    one,
                    options,
                    device=request.device,
                    threads=request.threads,
                    settings=config.onnxruntime,
                )
            )
            for one in (baseline, candidate)
        ]
        return validate(
            sides[0].side,
            sides[1].side,
            utterances.utterances,
            _gate_options(request, limits, utterances, data),
            progress,
            measure_sqnr=LogitsComparison(sides[0], sides[1], options),
        )


def _pair(baseline: Path | None, candidate: Path | None, progress: Progress) -> tuple[Path, Path]:
    if baseline is not None and candidate is not None:
        return _model_of(baseline), _model_of(candidate)
    if baseline is not None:
        raise UsageError(
            f"one artifact is not a comparison: svtool validate-wer {baseline} CANDIDATE --data LIST"
        )
    if not TINY_MODEL.is_file():
        raise ArtifactError(f"{TINY_MODEL} does not exist: make it with  svtool export")
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


def _limits(request: Request, config: Config, *, tiny: bool) -> GateConfig:
    found = config.gate_tiny if tiny else config.gate
    return GateConfig(
        found.drift_budget if request.budget is None else request.budget,
        found.max_disagreement if request.max_disagreement is None else request.max_disagreement,
        found.min_sqnr_db if request.min_sqnr is None else request.min_sqnr,
    )


def _gate_options(request: Request, limits: GateConfig, utterances: UtteranceList, data: str) -> GateOptions:
    return GateOptions(
        budget=limits.drift_budget,
        max_disagreement=limits.max_disagreement,
        # the tiny model's limit was set on its hardest part, where quantization shows first
        disagreement_where=("subset", "5db") if data == _TINY_DATA else None,
        min_sqnr_db=limits.min_sqnr_db,
        normaliser=request.normaliser,
        columns=("subset",) if data == _TINY_DATA else (),
        data={"list": data, "sha256": utterances.digest},
    )
