"""Runs utterances through the float32 model and keeps the range of every tensor that precision passes ask about.

Ranges are streamed: memory depends on the longest utterance, not on how many there are. Each utterance runs alone
at its natural length, so no padded frame is ever counted. The result is a JSON cache keyed by everything it depends
on, refused by name when any of it differs. Knows nothing of graphs being rewritten or engines being built.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from svtool import __version__, manifest
from svtool import graph as graphs
from svtool.errors import ArtifactError, UsageError
from svtool.frontend import FEATURE_SIZE
from svtool.progress import Progress, Silent

if TYPE_CHECKING:
    import onnx_ir as ir

    from svtool.assets import Assets
    from svtool.frontend import Cmvn
    from svtool.utterances import UtteranceList

FloatArray = npt.NDArray[np.float32]

SCHEMA = "svtool.calibration/1"
METHODS = ("max", "percentile")
MIN_UTTERANCES = 64  # fewer leave the tails of the ranges to chance
CLIPPED_SHARE = 1e-3  # of samples at full scale: more is audible distortion
_IN_FLIGHT_BYTES = 1 << 26
_INLINE_BYTES = 1 << 28  # larger models go to ONNX Runtime as a file, so that it can map the weights


class Sample(NamedTuple):
    """One utterance to run."""

    id: str
    feats: FloatArray  # [T, 560]
    language: int  # query row
    textnorm: int  # query row
    spoken: str = ""  # language of the utterance list, for the one-language warning
    clipped: bool = False


class Skipped(NamedTuple):
    """One utterance that was not run. Reasons: AudioError's, and `too_short`, `too_long`, `silent`."""

    id: str
    reason: str


@dataclass(frozen=True)
class Calibration:
    """Ranges and everything they depend on; `amax` clips int8, `absmax` decides what fp16 can hold."""

    onnx_digest: str
    list_name: str
    list_digest: str
    frontend: Mapping[str, Any]
    method: str
    percentile: float | None  # None for method "max"
    used: int
    frames: int  # LFR frames, without queries
    skipped: Mapping[str, int]  # reason -> count
    amax: Mapping[str, float]
    absmax: Mapping[str, float]
    languages: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    tool: str = __version__

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA} | asdict(self) | {"warnings": list(self.warnings)}

    @property
    def digest(self) -> str:
        return manifest.sha256_bytes(json.dumps(self.to_json(), sort_keys=True).encode())


def calibrate(
    model_path: Path,
    samples: Iterable[Sample | Skipped],
    *,
    method: str = "percentile",
    percentile: float = 99.999,
    max_frames: int = 500,
    list_name: str = "",
    list_digest: str = "",
    frontend: Mapping[str, Any] | None = None,
    multilingual: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
    total: int | None = None,
) -> Calibration:
    """Stream `samples` through the model. Raises ArtifactError when none is usable or a tensor is not finite."""
    progress = progress or Silent()
    if method not in METHODS or not 0 < percentile <= 100:
        raise UsageError(
            f"calibration method {method!r} at {percentile}: choose max, or percentile in (0, 100]"
        )
    model = graphs.load_model(model_path)
    graphs.check_contract(model, model_path)
    digest = graphs.model_digest(model)
    probes = _Probes(model, histograms=method == "percentile")
    del model  # its weights may be as large as the session's
    used: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    frames = clipped = 0
    progress.stage("calibrating", total)
    with probes.session(threads) as run:
        for sample in samples:
            progress.advance()
            if isinstance(sample, Sample) and not 1 <= len(sample.feats) <= max_frames:
                sample = Skipped(sample.id, "too_long" if len(sample.feats) else "too_short")
            if isinstance(sample, Skipped):
                skipped[sample.reason] += 1
                continue
            run(sample)
            used[sample.spoken or "unknown"] += 1
            frames += len(sample.feats)
            clipped += sample.clipped
    if not used:
        raise ArtifactError(
            f"no utterance of {list_name or 'the list'} can calibrate: {_counts(skipped) or 'it is empty'}"
        )
    warnings = _warnings(used, skipped, clipped, multilingual)
    for warning in warnings:
        progress.note(f"warning: {warning}")
    return Calibration(
        onnx_digest=digest,
        list_name=list_name,
        list_digest=list_digest,
        frontend=dict(frontend or {}),
        method=method,
        percentile=percentile if method == "percentile" else None,
        used=used.total(),
        frames=frames,
        skipped=dict(sorted(skipped.items())),
        amax=probes.clipping_points(percentile),
        absmax=probes.absmax(),
        languages=dict(sorted(used.items())),
        warnings=warnings,
    )


def largest(model_path: Path, samples: Iterable[Sample], *, threads: int | None = None) -> dict[str, float]:
    """Abs-max of every tensor that decides what fp16 can hold, over `samples`; no cache, no checks of the list."""
    probes = _Probes(graphs.load_model(model_path), histograms=False)
    with probes.session(threads) as run:
        for sample in samples:
            run(sample)
    return probes.absmax()


def save_cache(path: Path, calibration: Calibration) -> None:
    manifest.write_json(path, calibration.to_json())


def load_cache(
    path: Path,
    onnx_digest: str,
    *,
    list_digest: str | None = None,
    frontend: Mapping[str, Any] | None = None,
    method: str | None = None,
    percentile: float | None = None,
) -> Calibration:
    """Read a cache for the model with `onnx_digest`; keyword arguments left None are not compared.

    Raises ArtifactError that names what differs: never a silent reuse.
    """
    calibration = _parse(path)
    wanted = {
        "onnx_digest": ("model", onnx_digest),
        "tool": ("svtool version", __version__),
        "list_digest": ("utterance list", list_digest),
        "frontend": ("front end", frontend),
        "method": ("method", method),
        "percentile": ("percentile", percentile),
    }
    for key, (name, value) in wanted.items():
        found = getattr(calibration, key)
        if value is not None and found != value:
            raise ArtifactError(
                f"{path} was calibrated for another {name} ({_brief(found)}, here {_brief(value)}): "
                "calibrate again with  svtool build-trt --int8 --data LIST"
            )
    return calibration


def frontend_settings(cmvn: Cmvn) -> dict[str, Any]:
    """What of the front end the ranges depend on."""
    from svtool import frontend

    normalisation = manifest.sha256_bytes(cmvn.shift.tobytes() + cmvn.scale.tobytes())
    return {
        "sample_rate": frontend.SAMPLE_RATE,
        "dither": 0,
        "lfr": "7/6",
        "mels": 80,
        "cmvn_sha256": normalisation,
    }


def read_samples(
    utterances: UtteranceList, assets: Assets, *, max_seconds: float = 30.0
) -> Iterator[Sample | Skipped]:
    """Decode a list lazily, one utterance in memory at a time.

    Every second utterance runs with its own language and ITN, the others with `auto` and no ITN, so that the
    ranges cover the query rows people use.
    """
    from svtool.assets import LANGUAGES, TEXTNORMS
    from svtool.errors import AudioError
    from svtool.frontend import MIN_SAMPLES, SAMPLE_RATE, Frontend
    from svtool.segment import is_silent
    from svtool.utterances import decode_audio

    frontend = Frontend(assets.cmvn)
    for index, utterance in enumerate(utterances.utterances):
        try:
            audio = decode_audio(utterance.audio, name=utterance.id)
        except AudioError as error:
            yield Skipped(utterance.id, error.reason)
            continue
        count = len(audio.samples)
        if not MIN_SAMPLES <= count <= max_seconds * SAMPLE_RATE:
            yield Skipped(utterance.id, "too_short" if count < MIN_SAMPLES else "too_long")
        elif is_silent(audio.samples):
            yield Skipped(utterance.id, "silent")
        else:
            own = index % 2 == 1
            yield Sample(
                utterance.id,
                frontend.features(audio.samples),
                LANGUAGES.get(utterance.language or "auto", 0) if own else LANGUAGES["auto"],
                TEXTNORMS["withitn" if own else "woitn"],
                utterance.language or "",
                float(np.mean(np.abs(audio.samples) >= 0.999)) > CLIPPED_SHARE,
            )


class _Probes:
    """The model with extra outputs, and the streamed statistics behind them.

    Inputs of linear layers leave the graph whole when histograms are wanted; everything else leaves as one number.
    """

    # histogram bins: the top 14 bits of |x| without its sign, i.e. 64 bins per octave over all of float32
    _SHIFT = 17
    _BINS = 1 << 14
    _NOT_FINITE = 0x7F80_0000 >> _SHIFT

    def __init__(self, model: ir.Model, *, histograms: bool) -> None:
        self._linear_inputs = _unique(linear.source for linear in graphs.linears(model))
        head_inputs = [linear.source for linear in graphs.linears(model) if linear.head]
        # the head's input is always looked at whole: NaN anywhere upstream shows there
        self._whole = self._linear_inputs if histograms else head_inputs
        every = _unique([*self._linear_inputs, *_fp16_tensors(model)])
        self._reduced = [name for name in every if name not in set(self._whole)]
        self._reduced_set = set(self._reduced)
        self._absmax = dict.fromkeys(every, 0.0)
        self._histograms = (
            {name: np.zeros(self._BINS, np.int64) for name in self._whole} if histograms else {}
        )
        self._models = [_instrumented(model, self._whole, self._reduced)]

    def session(self, threads: int | None) -> _Running:
        """May be opened once: the graph goes to the session and is not kept here."""
        return _Running(self, self._models.pop(), threads)

    def absmax(self) -> dict[str, float]:
        return dict(self._absmax)

    def add(self, utterance: str, outputs: list[Any]) -> None:
        """Takes ONNX Runtime's own values in the order of the graph's outputs, and drops each one after use."""
        for name in (*self._whole, *self._reduced):
            values = outputs.pop(0).numpy()
            if name in self._reduced_set:
                self._widen(name, float(values), utterance)
            else:
                self._add_whole(name, values, utterance)

    def clipping_points(self, percentile: float) -> dict[str, float]:
        """Per linear input: the percentile of |x|, at most the largest value seen."""
        points = {}
        for name in self._linear_inputs:
            points[name] = self._absmax[name]
            if name in self._histograms:
                points[name] = min(points[name], self._upper_edge(self._histograms[name], percentile))
            if points[name] <= 0:
                raise ArtifactError(
                    f"the tensor {name!r} was zero in every utterance: calibrate on audio with speech"
                )
        return points

    def _add_whole(self, name: str, values: npt.NDArray[np.float32], utterance: str) -> None:
        bins = (np.abs(values.ravel()).view(np.uint32) >> self._SHIFT).astype(np.intp)
        if bins.size and int(bins.max()) >= self._NOT_FINITE:
            self._widen(name, math.nan, utterance)
        self._widen(name, float(np.abs(values).max(initial=0.0)), utterance)
        if name in self._histograms:
            self._histograms[name] += np.bincount(bins, minlength=self._BINS)

    def _widen(self, name: str, largest: float, utterance: str) -> None:
        if not math.isfinite(largest):
            raise ArtifactError(
                f"the tensor {name!r} is not finite for the utterance {utterance!r}: check the model"
            )
        self._absmax[name] = max(self._absmax[name], largest)

    def _upper_edge(self, histogram: npt.NDArray[np.int64], percentile: float) -> float:
        reached = np.searchsorted(np.cumsum(histogram), percentile / 100 * histogram.sum())
        return float(np.array([(int(reached) + 1) << self._SHIFT], np.uint32).view(np.float32)[0])


class _Running:
    """A session over the instrumented model, and the temporary file it may need."""

    def __init__(self, probes: _Probes, model: ir.Model, threads: int | None) -> None:
        self._probes = probes
        self._model = model
        self._threads = threads
        self._folder = tempfile.TemporaryDirectory(prefix="svtool-calibrate-")

    def __enter__(self) -> _Running:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads or 0
        options.log_severity_level = 3
        # lengths vary: an arena and memory patterns would keep a copy for each of them
        options.enable_cpu_mem_arena = False
        options.enable_mem_pattern = False
        # the default order reduces at the very end, with every activation alive until then
        options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
        # packed weights would be a second copy of all of them
        options.add_session_config_entry("session.disable_prepacking", "1")
        source = _for_runtime(self._model, Path(self._folder.name))
        graphs.release_weights(self._model)
        del self._model
        self._session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        return self

    def __exit__(self, *_: object) -> None:
        del self._session
        self._folder.cleanup()

    def __call__(self, sample: Sample) -> None:
        feats = sample.feats
        if feats.ndim != 2 or feats.shape[1] != FEATURE_SIZE or feats.dtype != np.float32:
            raise ArtifactError(
                f"the utterance {sample.id!r} has features {feats.dtype} {list(feats.shape)}, "
                f"expected float32 [T, {FEATURE_SIZE}]"
            )
        import onnxruntime

        feed = {
            "speech": feats[None],
            "speech_lengths": np.array([len(feats)], np.int32),
            "language": np.array([sample.language], np.int32),
            "textnorm": np.array([sample.textnorm], np.int32),
        }
        try:
            values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in feed.items()}
            outputs = self._session.run_with_ort_values(None, values)
        except Exception as error:
            raise ArtifactError(
                f"the model failed on the utterance {sample.id!r} of shape {list(feats.shape)}: {error}"
            ) from error
        self._probes.add(sample.id, outputs)


def _fp16_tensors(model: ir.Model) -> list[str]:
    """Tensors whose size decides what may run in fp16: norm inputs, adds, attention scores before the mask."""
    after = graphs.after_linears(model)
    names = []
    for node in model.graph:
        if node.op_type == "LayerNormalization" and node.inputs[0] is not None:
            names.append(str(node.inputs[0].name))
        elif node in after and (node.op_type == "MatMul" or (node.op_type == "Add" and not _masks(node))):
            names.append(str(node.outputs[0].name))
    outputs = {value.name for value in model.graph.outputs}
    return [name for name in _unique(names) if name not in outputs]


def _masks(node: ir.Node) -> bool:
    return any(use.node.op_type == "Softmax" for use in node.outputs[0].uses())


def _instrumented(model: ir.Model, whole: list[str], reduced: list[str]) -> ir.Model:
    import onnx_ir as ir

    model = model.clone()
    values = {str(output.name): output for node in model.graph for output in node.outputs}
    outputs = [values[name] for name in whole]
    for name in reduced:
        magnitude = ir.node("Abs", [values[name]], name=f"probe/abs/{name}")
        largest = ir.node("ReduceMax", magnitude.outputs, {"keepdims": 0}, name=f"probe/max/{name}")
        magnitude.outputs[0].name, largest.outputs[0].name = f"{name}/abs", f"{name}/absmax"
        largest.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        largest.outputs[0].shape = ir.Shape(())
        producer = values[name].producer()
        assert producer is not None
        model.graph.insert_after(producer, (magnitude, largest))
        outputs.append(largest.outputs[0])
    model.graph.outputs[:] = outputs
    return model


def _for_runtime(model: ir.Model, folder: Path) -> str | bytes:
    import onnx_ir as ir

    size = sum(
        value.const_value.nbytes
        for value in model.graph.initializers.values()
        if value.const_value is not None
    )
    if size <= _INLINE_BYTES:
        return graphs.to_bytes(model)
    ir.save(
        model,
        folder / "probes.onnx",
        external_data="probes.data",
        max_workers=1,
        max_in_flight_bytes=_IN_FLIGHT_BYTES,
    )
    return str(folder / "probes.onnx")


def _warnings(used: Counter[str], skipped: Counter[str], clipped: int, multilingual: bool) -> tuple[str, ...]:
    found = []
    if used.total() < MIN_UTTERANCES:
        found.append(f"only {used.total()} utterances were used; ranges want at least {MIN_UTTERANCES}")
    if skipped:
        found.append(f"{skipped.total()} utterances were skipped ({_counts(skipped)})")
    if clipped:
        found.append(f"{clipped} of {used.total()} utterances are clipped at full scale")
    known = [name for name in used if name != "unknown"]
    if multilingual and len(known) == 1:
        found.append(f"every utterance is {known[0]}: a multilingual model wants every language it will hear")
    return tuple(found)


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counter.items()))


def _parse(path: Path) -> Calibration:
    again = "calibrate again with  svtool build-trt --int8 --data LIST"
    if not path.is_file():
        raise ArtifactError(f"the calibration cache {path} does not exist: {again}")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ArtifactError(
            f"the calibration cache {path} is truncated or damaged ({error}): {again}"
        ) from error
    schema = raw.pop("schema", None) if isinstance(raw, dict) else None
    if schema != SCHEMA:
        raise ArtifactError(f"{path} has format {schema!r}, this svtool reads {SCHEMA!r}: {again}")
    try:
        calibration = Calibration(**raw | {"warnings": tuple(raw.get("warnings", ()))})
        tables = (calibration.amax.items(), calibration.absmax.items())
    except (TypeError, AttributeError) as error:
        raise ArtifactError(f"the calibration cache {path} is damaged ({error}): {again}") from error
    for kind, table, smallest in (("amax", tables[0], 0.0), ("absmax", tables[1], -0.0)):
        for name, value in table:
            usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not usable or value < smallest or (kind == "amax" and value == 0):
                raise ArtifactError(
                    f"{path}: the {kind} of {name!r} is {value!r}, not a finite positive number: {again}"
                )
    return calibration


def _brief(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text[:12] + "…" if len(text) == 64 else text


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
