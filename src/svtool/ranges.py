"""The float32 model with extra outputs, and what is remembered of the tensors that pass through it.

Everything is streamed: memory depends on the longest utterance, not on how many there are. Each utterance runs alone
at its natural length, so no padded frame is ever counted. Knows nothing of audio, caches or rewritten graphs.
"""

from __future__ import annotations

import contextlib
import gc
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from svtool import graph as graphs
from svtool import modelfile, thresholds
from svtool.errors import ArtifactError
from svtool.frontend import FEATURE_SIZE
from svtool.staging import staging

if TYPE_CHECKING:
    import onnx_ir as ir

FloatArray = npt.NDArray[np.float32]

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
    quiet: bool = False
    zeros: bool = False  # long stretches of digital silence
    digest: str = ""  # of the audio, see `audiofacts`


class Skipped(NamedTuple):
    """One utterance that was not run. Reasons: AudioError's, and `too_short`, `too_long`, `silent`."""

    id: str
    reason: str


class Probes:
    """Largest magnitude of every tensor that precision passes ask about, and histograms of linear inputs.

    Inputs of linear layers leave the graph whole when histograms are wanted; everything else leaves as one number.
    """

    def __init__(self, model: ir.Model, *, histograms: bool) -> None:
        self._linear_inputs = _unique(linear.source for linear in graphs.linears(model))
        head_inputs = [linear.source for linear in graphs.linears(model) if linear.head]
        # the head's input is always looked at whole: NaN anywhere upstream shows there
        self._whole = self._linear_inputs if histograms else head_inputs
        every = _unique([*self._linear_inputs, *_fp16_tensors(model)])
        self._reduced = [name for name in every if name not in set(self._whole)]
        self._reduced_set = set(self._reduced)
        self._absmax = dict.fromkeys(every, 0.0)
        self._counts = (
            {name: np.zeros(thresholds.BINS, np.int64) for name in self._whole} if histograms else {}
        )
        self._models = [_instrumented(model, self._whole, self._reduced)]

    def session(self, threads: int | None) -> Running:
        """May be opened once: the graph goes to the session and is not kept here."""
        return Running(self._models.pop(), self.add, threads)

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

    def clipping_points(self, choose: Callable[[thresholds.Counts, float], float] | None) -> dict[str, float]:
        """Per linear input: what `choose` makes of its histogram and largest magnitude, at most the latter."""
        points = {}
        for name in self._linear_inputs:
            points[name] = self._absmax[name]
            if points[name] > 0 and choose is not None:
                points[name] = min(points[name], choose(self._counts[name], points[name]))
            if points[name] <= 0:
                raise ArtifactError(
                    f"the tensor {name!r} was zero in every utterance: calibrate on audio with speech"
                )
        return points

    def _add_whole(self, name: str, values: FloatArray, utterance: str) -> None:
        if name in self._counts:
            counts = thresholds.count(values)
            if counts is None:
                raise _not_finite(name, utterance)
            self._counts[name] += counts
        self._widen(name, float(np.abs(values).max(initial=0.0)), utterance)

    def _widen(self, name: str, largest: float, utterance: str) -> None:
        if not math.isfinite(largest):
            raise _not_finite(name, utterance)
        self._absmax[name] = max(self._absmax[name], largest)


class ChannelProbes:
    """Largest magnitude per channel of some tensors: what smoothing balances."""

    def __init__(self, model: ir.Model, channels: Mapping[str, int]) -> None:
        """`channels`: tensor name -> size of its last axis."""
        self._largest = {name: np.zeros(size, np.float32) for name, size in channels.items()}
        self._models = [_instrumented(model, list(channels), [])]

    def session(self, threads: int | None) -> Running:
        """May be opened once: the graph goes to the session and is not kept here."""
        return Running(self._models.pop(), self.add, threads)

    def add(self, utterance: str, outputs: list[Any]) -> None:
        for name, largest in self._largest.items():
            values = np.abs(outputs.pop(0).numpy()).reshape(-1, len(largest)).max(axis=0, initial=0.0)
            if not np.isfinite(values).all():
                raise _not_finite(name, utterance)
            np.maximum(largest, values, out=largest)

    def largest(self) -> dict[str, FloatArray]:
        return dict(self._largest)


class Running:
    """A session over an instrumented model, and the temporary file it may need. Called with one sample at a time."""

    def __init__(self, model: ir.Model, sink: Callable[[str, list[Any]], None], threads: int | None) -> None:
        self._model = model
        self._sink = sink
        self._threads = threads
        self._files = contextlib.ExitStack()

    def __enter__(self) -> Running:
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
        folder = self._files.enter_context(staging(Path(tempfile.gettempdir()), "ranges"))
        source = _for_runtime(self._model, folder)
        graphs.release_weights(self._model)
        del self._model
        gc.collect()  # graphs are full of cycles, and a smoothed one holds its weights in memory
        try:
            self._session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's classes share no base of their own
            self._files.close()
            raise ArtifactError(
                f"the model with probes in it cannot be run by ONNX Runtime {onnxruntime.__version__} "
                f"({modelfile.words(error)}): make it again with  svtool export SOURCE  {modelfile.SOURCES}"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        del self._session
        self._files.close()

    def __call__(self, sample: Sample) -> None:
        import onnxruntime

        try:
            values = {
                name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in feed(sample).items()
            }
            outputs = self._session.run_with_ort_values(None, values)
        except ArtifactError:
            raise
        except Exception as error:
            raise ArtifactError(
                f"the model failed on the utterance {sample.id!r} of shape {list(sample.feats.shape)}: {error}"
            ) from error
        self._sink(sample.id, outputs)


def feed(sample: Sample) -> dict[str, npt.NDArray[Any]]:
    """The model's four inputs for one utterance alone."""
    feats = sample.feats
    if feats.ndim != 2 or feats.shape[1] != FEATURE_SIZE or feats.dtype != np.float32:
        raise ArtifactError(
            f"the utterance {sample.id!r} has features {feats.dtype} {list(feats.shape)}, "
            f"expected float32 [T, {FEATURE_SIZE}]"
        )
    return {
        "speech": feats[None],
        "speech_lengths": np.array([len(feats)], np.int32),
        "language": np.array([sample.language], np.int32),
        "textnorm": np.array([sample.textnorm], np.int32),
    }


def largest(model_path: Path, samples: Iterable[Sample], *, threads: int | None = None) -> dict[str, float]:
    """Abs-max of every tensor that decides what fp16 can hold, over `samples`; no cache, no checks of the list."""
    probes = Probes(graphs.load_model(model_path), histograms=False)
    with probes.session(threads) as run:
        for sample in samples:
            run(sample)
    return probes.absmax()


def _not_finite(name: str, utterance: str) -> ArtifactError:
    return ArtifactError(
        f"the tensor {name!r} is not finite for the utterance {utterance!r}: check the model"
    )


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


def _instrumented(model: ir.Model, whole: Sequence[str], reduced: Sequence[str]) -> ir.Model:
    import onnx_ir as ir

    model = model.clone()
    values = {str(output.name): output for node in model.graph for output in node.outputs}
    outputs = [values[name] for name in whole]
    for name in reduced:
        magnitude = ir.node("Abs", [values[name]], name=f"probe/abs/{name}")
        greatest = ir.node("ReduceMax", magnitude.outputs, {"keepdims": 0}, name=f"probe/max/{name}")
        magnitude.outputs[0].name, greatest.outputs[0].name = f"{name}/abs", f"{name}/absmax"
        greatest.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        greatest.outputs[0].shape = ir.Shape(())
        producer = values[name].producer()
        assert producer is not None
        model.graph.insert_after(producer, (magnitude, greatest))
        outputs.append(greatest.outputs[0])
    model.graph.outputs[:] = outputs
    return model


def _for_runtime(model: ir.Model, folder: Path) -> str | bytes:
    import onnx_ir as ir

    if graphs.weight_bytes(model) <= _INLINE_BYTES:
        return graphs.to_bytes(model)
    ir.save(
        model,
        folder / "probes.onnx",
        external_data="probes.data",
        max_workers=1,
        max_in_flight_bytes=_IN_FLIGHT_BYTES,
    )
    return str(folder / "probes.onnx")


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
