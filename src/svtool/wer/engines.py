"""Artifacts as the two sides of a comparison: opens them, runs them alike, and compares their logits.

Knows recognizers and manifests. Knows nothing of scores or verdicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from svtool.artifacts import runs_here
from svtool.audio import decode_audio
from svtool.backends import FloatArray
from svtool.backends.onnxrt import CPU_INT8, OnnxRuntimeBackend
from svtool.config import OrtConfig
from svtool.errors import ArtifactError, SvtoolError, UsageError
from svtool.frontend import LFR_FRAME_S
from svtool.manifest import check_digest, manifest_path, read_manifest, sha256_file
from svtool.recognizer import Options, Recognizer, open_recognizer
from svtool.sqnr import Sqnr
from svtool.utterances import Utterance
from svtool.wer.jobs import Opening, answers
from svtool.wer.sides import Side

_INT8_ON_CPU = "exact on every CPU (session.x64quantprecision=1)"
_INT8_BY_FORM = "exact on every CPU (by the form of its weights)"
_FRONTEND = "80 mel, 25/10 ms Hamming, LFR 7/6, CMVN"


@dataclass
class Opened:
    """A side that runs, the recognizer behind it, and what to close afterwards."""

    side: Side
    recognizer: Recognizer
    logits_from: Path  # the artifact whose logits stand for this side


@contextmanager
def open_side(
    artifact: Path,
    options: Options,
    *,
    device: str = "auto",
    threads: int | None = None,
    settings: OrtConfig | None = None,
    jobs: int = 1,
) -> Iterator[Opened]:
    """Open an artifact as a side. For a plan that this machine cannot run its twin runs, and the side says so.

    `jobs` processes share the work on a CPU, each with a recognizer of its own.
    """
    manifest = read_manifest(artifact) if manifest_path(artifact).is_file() else {}
    digest = _checked_digest(artifact, manifest.get("sha256")) if artifact.is_file() else None
    runs, executed, ran_digest, notes = artifact, True, digest, _unchecked(artifact, manifest)
    twin = _twin(artifact, manifest)
    if twin is not None and not runs_here(manifest):
        runs, executed, ran_digest = twin, False, _checked_digest(twin, manifest.get("twin_sha256"))
        notes.append(
            f"it cannot run here (no CUDA device): its ONNX twin {twin.name} was run; "
            "engine itself not executed"
        )
    opening = Opening(runs, device, threads, settings)
    recognizer = opening()
    try:
        if jobs > 1:
            _require_cpu(recognizer)
        if digest is None and recognizer.assets.checkpoint is not None:
            digest = ran_digest = sha256_file(recognizer.assets.checkpoint)
        alone = replace(options, batch_size_n=1)
        side = Side(
            name=artifact.name,
            transcribe=lambda utterances: answers(
                recognizer, utterances, options, jobs=jobs, opening=opening
            ),
            transcribe_alone=lambda utterances: answers(recognizer, utterances, alone),
            artifact=artifact,
            digest=digest,
            ran_digest=ran_digest,
            provider=f"{recognizer.backend.runtime}: {recognizer.backend.provider}",
            executed=executed,
            note="; ".join(notes) or None,
            conditions={
                "segmentation": f"at most {options.max_segment_s:g} s, cut at the quietest point",
                "frontend": _FRONTEND,
                "dither": 0,
                "language": options.language,
                "itn": options.itn,
                "batch_size_n": options.batch_size_n,
                "batch_size_s": options.batch_size_s,
                "precision": manifest.get("precision") or _precision_of(runs),
                "int8_arithmetic": _arithmetic(recognizer, manifest),
            },
        )
        yield Opened(side, recognizer, twin or runs)
    finally:
        recognizer.close()


def _require_cpu(recognizer: Recognizer) -> None:
    provider = recognizer.backend.provider
    if not provider.lower().startswith("cpu"):
        raise UsageError(
            f"--jobs is for the CPU and {recognizer.artifact} runs on {provider}, which is kept busy by batches: "
            "leave --jobs out"
        )


def _arithmetic(recognizer: Recognizer, manifest: dict[str, Any]) -> str | None:
    if recognizer.backend.runtime != "onnxruntime":
        return None
    return _INT8_BY_FORM if manifest.get("options", {}).get("int8_form") == CPU_INT8 else _INT8_ON_CPU


def _checked_digest(artifact: Path, wanted: str | None) -> str:
    check_digest(artifact, wanted)
    return wanted or sha256_file(artifact)


def _unchecked(artifact: Path, manifest: dict[str, Any]) -> list[str]:
    """What nothing vouches for."""
    if not manifest:
        beside = manifest_path(artifact).name
        return [
            f"no manifest ({beside}) lies beside it, so nothing proves that the file is whole or where it came from"
        ]
    if manifest.get("twin") and not manifest.get("twin_sha256"):
        return [
            "its manifest does not describe its ONNX twin, so nothing proves that the two belong together"
        ]
    return []


def _precision_of(model: Path) -> str | None:
    """Read from the graph, for a model without a manifest."""
    if model.suffix != ".onnx":
        return None
    import onnx

    graph = onnx.load(model, load_external_data=False).graph
    kinds = {node.op_type for node in graph.node}
    if any(kind.startswith(("Q", "DynamicQ")) or "Integer" in kind for kind in kinds):
        return "int8"
    if "DequantizeLinear" in kinds:
        return "int8-weights"
    halves = any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in graph.initializer)
    return "fp16" if halves else "fp32"


def _twin(artifact: Path, manifest: dict[str, Any]) -> Path | None:
    name = manifest.get("twin")
    if artifact.suffix != ".plan" or not name:
        return None
    twin = artifact.with_name(str(name))
    if not twin.is_file():
        raise ArtifactError(f"{artifact} names the twin {name}, which is missing: run svtool build-trt again")
    check_digest(twin, manifest.get("twin_sha256"))
    return twin


class LogitsComparison:
    """SQNR of a candidate's logits against a baseline's, one utterance at a time, over the twins."""

    def __init__(self, baseline: Opened, candidate: Opened, options: Options) -> None:
        self._sides, self._options = (baseline, candidate), options

    def __call__(self, utterances: Sequence[Utterance]) -> Sqnr:
        running = Sqnr()
        with ExitStack() as stack:
            reference, test = (_logits_recognizer(one, stack) for one in self._sides)
            for utterance in utterances:
                try:
                    feats = reference.features(decode_audio(utterance.audio).samples)
                except SvtoolError:
                    continue  # already counted against both sides as failed
                if len(feats):
                    self._compare(running, reference, test, feats)
        return running

    def _compare(self, running: Sqnr, reference: Recognizer, test: Recognizer, feats: FloatArray) -> None:
        options = self._options
        part = [feats[: int(options.max_segment_s / LFR_FRAME_S)]]
        before, after = (one.infer(part, [options.language], options.itn) for one in (reference, test))
        if before.logits is None or after.logits is None:
            raise SvtoolError(
                "logits can only be compared between models that give logits, not greedy engines"
            )
        running.add(before.logits, after.logits, before.logit_lens)


def _logits_recognizer(opened: Opened, stack: ExitStack) -> Recognizer:
    """The recognizer itself, or one more: of the twin, or of the same greedy engine, whose logits are inside."""
    backend = opened.recognizer.backend
    if opened.recognizer.artifact != opened.logits_from:
        recognizer = open_recognizer(opened.logits_from)
    elif isinstance(backend, OnnxRuntimeBackend) and not backend.gives_logits:
        shown = OnnxRuntimeBackend(opened.logits_from, logits=True)
        recognizer = Recognizer(shown, opened.recognizer.assets, artifact=opened.logits_from)
    else:
        return opened.recognizer
    stack.callback(recognizer.close)
    return recognizer
