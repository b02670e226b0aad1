"""`svtool verify PLAN`: runs an engine at every corner of its profiles on the GPU it is meant for.

Finite numbers, exact lengths, and agreement with the plan's ONNX twin, which runs the same arithmetic on the CPU.
`check` takes any two backends; `verify` opens a plan and its twin and writes what it found into the plan's manifest.
Knows nothing of WER: `validate-wer` measures what an engine costs in recognition.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from svtool import manifest, parity
from svtool.assets import QUERIES, read_assets
from svtool.backends import Backend, Batch, FloatArray, Output, load_backend
from svtool.errors import ArtifactError, SvtoolError
from svtool.flavor import compute_capability, gpu_name, has_cuda_device
from svtool.frontend import LFR_FRAME_S, SAMPLE_RATE, Frontend
from svtool.progress import Progress, Silent
from svtool.sqnr import Sqnr

if TYPE_CHECKING:
    from rich.console import RenderableType

_GRAPH_RUNS = 3  # a CUDA graph is recorded on the second call of a shape and replayed on the third


@dataclass(frozen=True)
class Bar:
    """What an engine must reach against its twin in every case."""

    sqnr_db: float  # of the logits: all of them, or those of the tags where only these leave the engine
    argmax_agreement: float  # percent of valid frames with the same token
    logprob_error: float  # nats, mean over the frames that agree


# An engine does its twin's arithmetic in another order. On the embedded model ONNX Runtime stands at 74 dB where it
# computes the fp16 graph in float32, and at 34 dB with 99.2 % equal tokens where it runs the same int8 layers between
# float32 instead of fp16 ones: a value beside a rounding boundary moves by a whole int8 step. The bars leave room
# below that for larger models. They have not met a GPU yet.
BARS = {
    "fp16": Bar(30.0, 98.0, 0.1),
    "int8": Bar(20.0, 90.0, 0.3),
    "int8-weights": Bar(30.0, 98.0, 0.1),
}


@dataclass(frozen=True)
class Case:
    """One batch, named after the corner that it tries."""

    name: str
    profile: tuple[int, int]  # largest batch and frames
    batch: Batch


@dataclass(frozen=True)
class Result:
    name: str
    profile: tuple[int, int]
    shape: tuple[int, int]  # batch, frames
    failure: str | None  # one sentence; None = passed
    sqnr_db: float | None = None  # None: identical, or not compared
    argmax_agreement: float | None = None
    logprob_error: float | None = None


@dataclass(frozen=True)
class Report:
    plan: Path
    twin: Path
    engine: str  # library and version
    gpu: str | None
    compute_capability: str | None
    precision: str
    cuda_graphs: bool
    bar: Bar
    results: tuple[Result, ...]

    @property
    def passed(self) -> bool:
        return all(one.failure is None for one in self.results)

    def to_json(self) -> dict[str, Any]:
        paths = {"plan": str(self.plan), "twin": str(self.twin)}
        return {"schema": "svtool.verify/1", "passed": self.passed} | paths | self._facts()

    def for_manifest(self) -> dict[str, Any]:
        when = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return {"passed": self.passed, "date": when} | self._facts()

    def _facts(self) -> dict[str, Any]:
        names = ("engine", "gpu", "compute_capability", "precision", "cuda_graphs")
        figures = {"bar": asdict(self.bar), "cases": [asdict(one) for one in self.results]}
        return {name: getattr(self, name) for name in names} | figures


def verify(
    plan: Path, *, threads: int | None = None, cuda_graphs: bool = False, progress: Progress | None = None
) -> Report:
    """Run a plan against its twin and write the outcome into the plan's manifest.

    Raises SvtoolError, and leaves the manifest alone, when the plan cannot be opened here.
    """
    if plan.is_dir():
        raise ArtifactError(
            f"{plan} is a folder: name the plan in it, as in  svtool verify {plan / 'int8.plan'}"
        )
    if not plan.is_file():
        raise ArtifactError(
            f"{plan} does not exist: copy it here with its manifest and twin, or build it with  "
            f"svtool build-trt MODEL -o {plan}"
        )
    if plan.suffix != ".plan":
        raise ArtifactError(
            f"{plan} is no plan: svtool verify runs .plan files; compare other artifacts with  svtool validate-wer"
        )
    described = manifest.read_manifest(plan)
    # before anybody carries a damaged file to another machine
    manifest.check_digest(plan, described.get("sha256"))
    twin_path = _twin_of(plan, described)
    if not has_cuda_device():
        raise ArtifactError(
            f"{plan} can only be verified on an NVIDIA GPU, and no CUDA device answers here: copy its folder to the "
            f"target and run  svtool verify {plan.name}  there"
        )
    frontend = Frontend(read_assets(plan.parent, name=plan.parent.resolve().name).cmvn)
    from svtool.backends.trt import open_plan

    engine = open_plan(plan, cuda_graphs=cuda_graphs)
    try:
        twin = load_backend(twin_path, threads=threads)
        precision = str(described.get("precision"))
        bar = BARS.get(precision, BARS["fp16"])
        cases = list(make_cases(engine.limits.profiles, frontend))
        repeats = _GRAPH_RUNS if cuda_graphs else 1
        results = check(engine, twin, cases, bar, repeats=repeats, progress=progress)
        machine = (gpu_name(), compute_capability())
        report = Report(plan, twin_path, engine.provider, *machine, precision, cuda_graphs, bar, results)
    finally:
        engine.close()
    record(report)
    return report


def record(report: Report) -> None:
    """Write the outcome into the plan's manifest, in one step; everything else in it stays."""
    described = manifest.read_manifest(report.plan)
    outcome = {"verified_on_gpu": report.passed, "verification": report.for_manifest()}
    manifest.write_json(manifest.manifest_path(report.plan), described | outcome)


def make_cases(profiles: Sequence[tuple[int, int]], frontend: Frontend) -> Iterator[Case]:
    """Six batches for every profile: what real audio seldom is, at the sizes where an engine breaks."""
    for batch, frames in profiles:
        tenth = max(1, frames // 10)
        spread = [max(1, frames - row * frames // batch) for row in range(batch)]
        samples = round(frames * LFR_FRAME_S * SAMPLE_RATE)
        square = np.where(np.arange(samples) // 80 % 2 == 0, 1.0, -1.0).astype(
            np.float32
        )  # 100 Hz, full scale
        batches = {
            "one frame": _noise(1, [1]),
            "ragged": _noise(frames, spread),
            "maximum": _noise(frames, [frames] * batch),
            "90 % padding": _noise(frames, [tenth] * batch),
            "silence": _sound(frontend, np.zeros(samples, np.float32), frames),
            "square wave": _sound(frontend, square, frames),
        }
        for name, one in batches.items():
            yield Case(name, (batch, frames), one)


def check(
    engine: Backend,
    twin: Backend,
    cases: Sequence[Case],
    bar: Bar,
    *,
    repeats: int = 1,
    progress: Progress | None = None,
) -> tuple[Result, ...]:
    """Every case through both, in order. `repeats`: how often the engine runs a case; the last answer counts."""
    progress = progress or Silent()
    progress.stage("running the engine against its twin", len(cases))
    results = []
    for case in cases:
        results.append(_check_case(engine, twin, case, bar, repeats))
        progress.advance()
    return tuple(results)


def render(report: Report) -> RenderableType:
    from rich.table import Table

    title = (
        f"{report.plan.name}: {'verified' if report.passed else 'FAILED'} on {report.gpu} ({report.engine})"
    )
    table = Table(title=title, title_justify="left")
    for name in ("profile", "case", "batch x frames", "SQNR", "same tokens", "outcome"):
        table.add_column(name)
    for one in report.results:
        compared = one.argmax_agreement is not None
        decibels = "identical" if one.sqnr_db is None else f"{one.sqnr_db:.1f} dB"
        table.add_row(
            f"{one.profile[0]} x {one.profile[1]}",
            one.name,
            f"{one.shape[0]} x {one.shape[1]}",
            decibels if compared else "",
            f"{one.argmax_agreement:.2f} %" if compared else "",
            one.failure or "ok",
        )
    return table


def _twin_of(plan: Path, described: Mapping[str, Any]) -> Path:
    twin = plan.with_name(str(described.get("twin", plan.with_suffix(".onnx").name)))
    if not twin.is_file():
        raise ArtifactError(
            f"{plan} is compared with its ONNX twin, and {twin} does not exist: copy it to here from where the plan "
            "was built, or build both again with  svtool build-trt"
        )
    manifest.check_digest(twin, described.get("twin_sha256"))
    if described.get("precision") == "int8":
        _check_onnxruntime()
    return twin


def _check_onnxruntime() -> None:
    import onnxruntime

    numbers = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
    if numbers < parity.INT8_TRUE_FROM:
        least = ".".join(map(str, parity.INT8_TRUE_FROM))
        raise SvtoolError(
            f"onnxruntime {onnxruntime.__version__} computes int8 twins wrongly, so nothing can be compared with one: "
            f"install onnxruntime {least} or later"
        )


def _noise(frames: int, lengths: Sequence[int]) -> Batch:
    feed = parity.make_feed(frames, lengths)
    return Batch(feed["speech"], feed["speech_lengths"], feed["language"], feed["textnorm"])


def _sound(frontend: Frontend, waveform: FloatArray, frames: int) -> Batch:
    """One waveform f32 [N] as a batch of one, of at most `frames`; at least one, however short the waveform."""
    feats = frontend.features(np.pad(waveform, (0, max(0, 400 - len(waveform)))))[:frames]
    feed = parity.make_feed(1, [1])
    return Batch(feats[None], np.array([len(feats)], np.int32), feed["language"], feed["textnorm"])


def _check_case(engine: Backend, twin: Backend, case: Case, bar: Bar, repeats: int) -> Result:
    batch = case.batch
    shape = (batch.feats.shape[0], batch.feats.shape[1])
    try:
        for _ in range(repeats):
            output = engine.infer(batch)
        wanted = twin.infer(batch)
    except Exception as error:  # noqa: BLE001 - runtimes raise many kinds; each is the outcome of its case
        return Result(case.name, case.profile, shape, str(error) or type(error).__name__)
    failure = _broken(output, batch, "the engine") or _broken(wanted, batch, "the twin")
    if failure is not None:
        return Result(case.name, case.profile, shape, failure)
    decibels, agreement, nats = _compare(output, wanted)
    return Result(
        case.name,
        case.profile,
        shape,
        _under(bar, decibels, agreement, nats),
        round(decibels, 2) if math.isfinite(decibels) else None,
        round(agreement, 3),
        round(nats, 4),
    )


def _broken(output: Output, batch: Batch, who: str) -> str | None:
    """Lengths, shapes and numbers of one output, in the valid frames."""
    count, frames = batch.feats.shape[0], batch.feats.shape[1] + QUERIES
    if not np.array_equal(output.logit_lens, batch.feat_lens + QUERIES):
        return f"{who} returned the lengths {output.logit_lens.tolist()} for {batch.feat_lens.tolist()}"
    if output.token_ids.shape != (count, frames) or output.token_logprobs.shape != (count, frames):
        return f"{who} returned ids of shape {list(output.token_ids.shape)}, expected {[count, frames]}"
    for item, length in enumerate(output.logit_lens):
        values = [output.token_logprobs[item, :length], output.tag_logits[item]]
        if output.logits is not None:
            values.append(output.logits[item, :length])
        if not all(np.isfinite(one).all() for one in values):
            return f"{who} returned numbers that are not finite for item {item}"
    return None


def _compare(output: Output, wanted: Output) -> tuple[float, float, float]:
    """Decibels, percent of frames with the same token, and nats between the log-probabilities of those frames."""
    noise = Sqnr()
    if output.logits is not None and wanted.logits is not None:
        noise.add(wanted.logits, output.logits, wanted.logit_lens)
    else:
        noise.add(wanted.tag_logits, output.tag_logits)
    valid = np.arange(output.token_ids.shape[1]) < output.logit_lens[:, None]
    same = valid & (output.token_ids == wanted.token_ids)
    apart = np.abs(output.token_logprobs - wanted.token_logprobs)[same]
    agreement = 100.0 * float(same.sum() / valid.sum())
    return noise.db or 0.0, agreement, float(apart.mean()) if apart.size else 0.0


def _under(bar: Bar, decibels: float, agreement: float, nats: float) -> str | None:
    if decibels < bar.sqnr_db:
        return f"{decibels:.1f} dB against its twin, at least {bar.sqnr_db:g} wanted"
    if agreement < bar.argmax_agreement:
        return f"{agreement:.1f} % of frames have the twin's token, at least {bar.argmax_agreement:g} wanted"
    if nats > bar.logprob_error:
        return f"log-probabilities {nats:.2f} nats from the twin's, at most {bar.logprob_error:g} wanted"
    return None
