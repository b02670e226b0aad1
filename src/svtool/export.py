"""`svtool export`: a checkpoint in, a directory with an ONNX model proven equal to PyTorch out, or nothing.

Knows the exporter and what its graph must look like. Knows nothing of precision or engines.
"""

from __future__ import annotations

import errno
import gc
import logging
import re
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from svtool import graph as graphs
from svtool import interop
from svtool.artifacts import ENGINES, MODEL_NAME
from svtool.assets import BPE_NAME, CHECKPOINT_NAME, CMVN_NAME, CONFIG_NAME, Assets, find_assets
from svtool.backends import Limits
from svtool.backends.onnxrt import open_session
from svtool.errors import ArtifactError, MissingDependency, SvtoolError, UsageError
from svtool.manifest import manifest_path, read_manifest, sha256_file, versions, write_manifest
from svtool.parity import make_feed, run
from svtool.progress import Progress, Silent
from svtool.simplify import Simplified, simplify
from svtool.staging import staging

if TYPE_CHECKING:
    import onnx_ir as ir
    from rich.console import RenderableType

    from svtool.model import SenseVoice

EXPORTER = "torch.onnx dynamo"
IR_VERSION = 10  # what ONNX Runtime 1.18 and later read; newer onnx would write a version they refuse
DEVICES = re.compile(r"cpu|cuda(:\d+)?")
OPSETS = range(18, 24)  # native LayerNormalization came with 17; the exporter writes 18 and later
# batch and a prime length that no check uses: a size baked in by accident then fails on every shape that is checked
TRACED = (4, 61)
SWEEP = [(batch, frames) for batch in (1, 2, 3, 5) for frames in (1, 7, 30, 171)]
MIN_SQNR_DB = 80.0  # float32 in two runtimes; a wrong graph falls under 20


@dataclass(frozen=True)
class ExportOptions:
    opset: int = 18
    simplify: bool = True
    device: str = "cpu"  # where PyTorch traces; the graph is the same
    revision: str | None = None
    force: bool = False


@dataclass(frozen=True)
class Parity:
    """ONNX Runtime against PyTorch over the valid frames of shapes that were not traced."""

    max_abs: float
    sqnr_db: float | None  # None = equal
    argmax_agreement: float  # percent
    shapes: tuple[tuple[int, int], ...]  # (B, T)
    min_sqnr_db: float = MIN_SQNR_DB


@dataclass(frozen=True)
class ExportReport:
    model: Path
    source: str
    unchanged: bool  # the directory already held this very export
    opset: int
    nodes: int
    size_bytes: int
    vocab_size: int
    parity: dict[str, Any]
    simplified: dict[str, Any] | None  # None = not asked for
    seconds: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        return {"schema": "svtool.export/1", **asdict(self), "model": str(self.model)}


def export(
    source: str,
    out: Path | None = None,
    options: ExportOptions | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Export `source` into the directory `out` (default `engines/<name>`).

    Raises UsageError for impossible options, ArtifactError for a checkpoint that does not fit or a graph that is not
    what it must be. On any failure the directory is as it was.
    """
    options, progress = options or ExportOptions(), progress or Silent()
    _check_options(options)
    assets = find_assets(source, revision=options.revision, progress=progress)
    if assets.checkpoint is None:
        raise ArtifactError(assets.without_checkpoint())
    folder = out or ENGINES / assets.name
    _check_folder(folder, assets)
    target = folder / MODEL_NAME
    described = _described(assets, options)
    if not options.force and (kept := _unchanged(target, described)):
        progress.note(f"{target} is up to date: same checkpoint, same options (--force exports again)")
        return _report(target, kept, unchanged=True, seconds={})
    try:
        return _export(assets, target, described, options, progress)
    except OSError as error:
        raise SvtoolError(f"the export into {folder} failed: {_why(error)}") from error
    except MemoryError as error:
        raise SvtoolError(
            "not enough memory for the export: at full size it takes about 6 GB; close other programs or use "
            "another machine (nothing was written)"
        ) from error


def _why(error: OSError) -> str:
    """What the system refused, and what helps."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "no space left there (about three times the checkpoint's size is needed): free some, or use -o"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "it may not be written; name another directory with -o"
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return "a part of that path is a file; name another directory with -o"
    # the folder of work in progress has a name that says nothing
    named = bool(error.filename) and ".svtool-" not in str(error.filename)
    where = f"{error.filename}: " if named else ""
    return f"{where}{error.strerror or error}; name another directory with -o"


def _check_options(options: ExportOptions) -> None:
    if options.opset not in OPSETS:
        raise UsageError(f"opset {options.opset} cannot be written: use {OPSETS[0]} to {OPSETS[-1]}")
    if not DEVICES.fullmatch(options.device):
        raise UsageError(f"device {options.device!r} is not known: use cpu, cuda or cuda:N")


def _check_folder(folder: Path, assets: Assets) -> None:
    """Refuse, before minutes of work, folders that cannot or must not be written."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file: name a directory to write the model and its files into")
    if folder.resolve() == assets.root.resolve():
        raise UsageError(
            f"{folder} holds the checkpoint: its config.yaml would be replaced; name another directory with -o"
        )
    foreign = [name for name in (*interop.FILES, MODEL_NAME) if (folder / name).exists()]
    if foreign and not manifest_path(folder / MODEL_NAME).is_file():
        raise UsageError(
            f"{folder} holds {', '.join(foreign)} that svtool did not write (no {MODEL_NAME}.json beside it): "
            "name another directory with -o, or move them away"
        )


def _export(
    assets: Assets, target: Path, described: dict[str, Any], options: ExportOptions, progress: Progress
) -> ExportReport:
    seconds: dict[str, float] = {}
    with _staging(target.parent) as work:
        path = work / MODEL_NAME
        # what is wrong with these small files is told before minutes of work
        interop.write_files(assets, work)
        with _timed("load", seconds):
            progress.stage("loading the checkpoint")
            model = _load(assets, options.device)
        with _timed("export", seconds):
            progress.stage("tracing the model (minutes at full size)")
            traced = trace(model, options.opset)
            check_axes(traced)  # again on the file that is kept, but a fixed axis is better told at once
            traced.metadata_props.update(_metadata(assets, described))
            graphs.save_model(traced, path)
            del traced
        if options.device != "cpu":
            model = model.cpu()
        simplified = None
        if options.simplify:
            with _timed("simplify", seconds):
                progress.stage("simplifying")
                simplified = simplify(path, progress)
                if simplified.reason:
                    progress.note(f"onnxsim's result was not used: {simplified.reason}")
        gc.collect()  # graphs are full of cycles: without it two more copies of the weights stay while both sides run
        with _timed("parity", seconds):
            parity = compare_with_torch(model, path, progress)
        final = graphs.load_model(path)
        graphs.check_contract(final, path)
        check_axes(final)
        manifest = _manifest(final, path, assets, described, parity, simplified)
        write_manifest(path, manifest)
        _publish(work, target)
    return _report(target, read_manifest(target), unchanged=False, seconds=seconds)


def trace(model: SenseVoice, opset: int) -> ir.Model:
    """The graph of `model`, cleaned up, with the axis names and the IR version that other tools expect."""
    import torch

    batch, frames = TRACED
    feed = make_feed(frames, [max(1, frames - 20 * item) for item in range(batch)])
    device = next(model.parameters()).device
    inputs = tuple(torch.from_numpy(feed[name]).to(device) for name in graphs.INPUTS)
    axes = {0: torch.export.Dim("batch_size", min=1)}
    try:
        with _strict_exporter():
            program = torch.onnx.export(
                model,
                inputs,
                dynamo=True,
                opset_version=opset,
                input_names=list(graphs.INPUTS),
                output_names=[graphs.LOGITS, graphs.LENGTHS],
                dynamic_shapes=(axes | {1: torch.export.Dim("feats_length", min=1)}, axes, axes, axes),
                # its rewrite rules are tried on every node: minutes at full size, for what _clean does in a second
                optimize=False,
                verbose=False,
            )
    except Exception as error:  # the exporter's own classes differ between torch versions
        raise SvtoolError(
            f"torch {torch.__version__} cannot export the model with dynamic batch and time: {_cause(error)}"
        ) from error
    if program is None:
        raise SvtoolError("the exporter of this torch returned nothing: svtool needs torch 2.6 or newer")
    traced: ir.Model = program.model
    _clean(traced)
    _name_axes(traced)
    _name_weights(traced)
    traced.ir_version = IR_VERSION
    return traced


def _clean(model: ir.Model) -> None:
    """Fold constants and drop what is double or unused; constant-weight MatMuls stay as they are."""
    from onnx_ir.passes import common
    from onnxscript import optimizer

    optimizer.inline(model)
    # the limits let the largest weight through: its transposition must be folded
    optimizer.fold_constants(model, input_size_limit=1 << 30, output_size_limit=1 << 30)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.DeduplicateInitializersPass()(model)
    common.IdentityEliminationPass()(model)
    common.CommonSubexpressionEliminationPass()(model)
    common.RemoveUnusedNodesPass()(model)
    # the exporter notes the source lines of this machine at every node
    common.ClearMetadataAndDocStringPass()(model)


def _name_axes(model: ir.Model) -> None:
    """`logits_length` where the exporter wrote an expression of the time axis, inside the graph too."""
    import onnx_ir

    logits = next((value for value in model.graph.outputs if value.name == graphs.LOGITS), None)
    if logits is None or logits.shape is None:
        return  # check_axes tells
    expression = str(logits.shape[1])
    for value in (*(output for node in model.graph for output in node.outputs), *model.graph.outputs):
        if value.shape is not None and not value.shape.is_static():
            dims = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
            value.shape = onnx_ir.Shape(["logits_length" if dim == expression else dim for dim in dims])


def _name_weights(model: ir.Model) -> None:
    """Transposing a weight made it lose its name: give it the module's back."""
    for linear in list(graphs.linears(model)):
        weight, name = linear.node.inputs[1], f"{linear.name}.weight"
        if linear.bias is not None and weight is not None and name not in model.graph.initializers:
            model.graph.initializers.pop(str(weight.name))
            weight.name = name
            model.graph.initializers[name] = weight


def check_axes(model: ir.Model) -> None:
    """Raise ArtifactError unless batch and time are symbolic, by name, on every input and output."""
    values = {str(value.name): value for value in (*model.graph.inputs, *model.graph.outputs)}
    if list(values) != list(graphs.AXES):
        raise ArtifactError(
            f"the exported graph has the inputs and outputs {', '.join(values)}, expected {', '.join(graphs.AXES)}"
        )
    for name, wanted in graphs.AXES.items():
        shape = values[name].shape
        found = [dim if isinstance(dim, int) else dim.value for dim in shape] if shape is not None else []
        fixed = found[len(wanted) :]
        if found[: len(wanted)] != list(wanted) or not all(isinstance(size, int) for size in fixed):
            raise ArtifactError(
                f"the exported graph has {name} {found}, expected {[*wanted, *fixed]}: the exporter fixed or renamed "
                "an axis; try another torch version"
            )


def compare_with_torch(model: SenseVoice, path: Path, progress: Progress) -> Parity:
    """Run both on every shape of the sweep, ragged. Raises ArtifactError when they differ."""
    import torch

    session = open_session(path)
    progress.stage("comparing with PyTorch", total=len(SWEEP))
    signal = noise = largest = 0.0
    agreed = frames = 0
    for batch, length in SWEEP:
        feed = make_feed(length, [max(1, length - 3 * item) for item in range(batch)], seed=length)
        with torch.inference_mode():
            wanted, lens = model(*(torch.from_numpy(feed[name]) for name in graphs.INPUTS))
        found, found_lens = run(session, path, feed)
        if not np.array_equal(found_lens, lens.numpy()) or found.shape != tuple(wanted.shape):
            raise ArtifactError(
                f"the exported graph gives other lengths than PyTorch at batch {batch}, {length} frames"
            )
        for item, valid in enumerate(found_lens):
            one, two = wanted[item, :valid].numpy().astype(np.float64), found[item, :valid].astype(np.float64)
            if not np.isfinite(one).all() or not np.isfinite(two).all():
                side = "the exported graph" if np.isfinite(one).all() else "the checkpoint in PyTorch"
                raise ArtifactError(f"{side} gives logits that are not finite: not written")
            signal += float(np.square(one).sum())
            noise += float(np.square(one - two).sum())
            largest = max(largest, float(np.abs(one - two).max()))
            agreed += int((one.argmax(-1) == two.argmax(-1)).sum())
            frames += int(valid)
        progress.advance()
    sqnr = 10 * float(np.log10(signal / noise)) if noise else None
    if sqnr is not None and sqnr < MIN_SQNR_DB:
        raise ArtifactError(
            f"the exported graph differs from PyTorch (largest difference {largest:.2g}, SQNR {sqnr:.0f} dB, at least "
            f"{MIN_SQNR_DB:.0f} dB is asked): not written"
        )
    return Parity(largest, sqnr, 100.0 * agreed / frames, tuple(SWEEP))


def _load(assets: Assets, device: str) -> SenseVoice:
    try:
        import onnxscript
        import torch
    except ImportError as error:
        raise MissingDependency("svtool export", "torch and onnxscript", "export") from error
    del onnxscript  # only its presence is checked: the exporter would fail without it after minutes
    from svtool.model import load_checkpoint

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise SvtoolError(
            "--device cuda was asked for, but PyTorch finds no CUDA device here: use --device cpu"
        )
    return load_checkpoint(assets).to(device)


@contextmanager
def _strict_exporter() -> Iterator[None]:
    """Quiet about libraries that this model does not use and calls that torch deprecates in itself, strict on sizes."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # a size that became a Python number would be baked into the graph
            warnings.filterwarnings("error", message=".*[Cc]onvert(ing|ed) (a tensor )?to a Python.*")
            yield
    finally:
        logger.setLevel(level)


def _cause(error: BaseException) -> str:
    """What went wrong underneath: the exporter's own message is a page of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def _described(assets: Assets, options: ExportOptions) -> dict[str, Any]:
    """What the export depends on."""
    names = (CHECKPOINT_NAME, CONFIG_NAME, CMVN_NAME, BPE_NAME)
    return {
        "source": {
            "name": assets.name,
            "revision": assets.revision,
            "files": {name: sha256_file(assets.file(name)) for name in names},
        },
        "options": {
            "exporter": EXPORTER,
            "opset": options.opset,
            "simplify": options.simplify,
            "device": options.device,
        },
        "built_with": versions("torch", "onnx", "onnx-ir", "onnxscript", "onnxsim"),
    }


def _unchanged(target: Path, described: dict[str, Any]) -> dict[str, Any] | None:
    """The manifest, when the directory holds exactly what this export would write again."""
    if not target.is_file() or not manifest_path(target).is_file():
        return None
    try:
        manifest = read_manifest(target)
    except ArtifactError:
        return None
    same = all(manifest.get(key) == value for key, value in described.items())
    whole = all((target.parent / name).is_file() for name in interop.FILES)
    return manifest if same and whole and manifest.get("sha256") == sha256_file(target) else None


def _metadata(assets: Assets, described: dict[str, Any]) -> dict[str, str]:
    files, options = described["source"]["files"], described["options"]
    return interop.metadata(len(assets.tokens.pieces), assets.cmvn) | {
        graphs.TAG_IDS_KEY: ",".join(map(str, assets.tokens.tag_ids)),
        graphs.PRECISION_KEY: "fp32",
        "svtool.source": assets.name,
        "svtool.checkpoint_sha256": files[CHECKPOINT_NAME],
        **{f"svtool.export.{key}": str(value) for key, value in options.items()},
    }


def _manifest(
    model: ir.Model,
    path: Path,
    assets: Assets,
    described: dict[str, Any],
    parity: Parity,
    simplified: Simplified | None,
) -> dict[str, Any]:
    return {
        "kind": "model",
        "runtime": "onnxruntime",
        "precision": "fp32",
        "head": "logits",
        **described,
        "onnx_digest": graphs.model_digest(model),
        "opset": int(model.opset_imports[""]),
        "nodes": len(model.graph),
        "vocab_size": len(assets.tokens.pieces),
        "tag_ids": list(assets.tokens.tag_ids),
        "max_frames": Limits().max_frames,
        "parity": asdict(parity),
        "simplified": simplified.to_json() if simplified else None,
    }


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """A folder on the file system of `folder`: inside it, or in its parent where there is none yet."""
    inside = folder.is_dir()
    parent, purpose = (folder, "export") if inside else (folder.parent, f"export-{folder.name[:40]}")
    with staging(parent, purpose) as work:
        finished = work / "finished"  # has the permissions that a new folder gets, which `work` has not
        finished.mkdir()
        yield finished


def _publish(work: Path, target: Path) -> None:
    """Move the finished files into place; engines beside them stay.

    When one cannot be moved, those that were there before come back. The manifest goes first and comes last.
    """
    folder = target.parent
    if not folder.exists():
        work.rename(folder)
        return
    described = manifest_path(target).name
    before = work / "before"
    before.mkdir()
    moved: list[str] = []
    try:
        if (folder / described).is_file():
            (folder / described).replace(before / described)
        for name in (*interop.FILES, MODEL_NAME, described):
            if (folder / name).is_file():
                (folder / name).replace(before / name)
            if (work / name).is_file():
                (work / name).replace(folder / name)
                moved.append(name)
    except BaseException:
        for name in moved:
            (folder / name).unlink()
        for path in before.iterdir():
            path.replace(folder / path.name)
        raise


@contextmanager
def _timed(name: str, seconds: dict[str, float]) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds[name] = round(time.perf_counter() - began, 2)


def _report(
    target: Path, manifest: dict[str, Any], *, unchanged: bool, seconds: dict[str, float]
) -> ExportReport:
    return ExportReport(
        model=target,
        source=manifest["source"]["name"],
        unchanged=unchanged,
        opset=manifest["opset"],
        nodes=manifest["nodes"],
        size_bytes=manifest["size_bytes"],
        vocab_size=manifest["vocab_size"],
        parity=manifest["parity"],
        simplified=manifest["simplified"],
        seconds=seconds,
    )


def render(report: ExportReport) -> RenderableType:
    """The report as a table for the terminal."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    state = "[yellow]unchanged[/]" if report.unchanged else "[green]written[/]"
    table.add_row("model", f"[bold]{escape(str(report.model))}[/] {state}")
    table.add_row(
        "graph", f"{report.nodes} nodes, {report.size_bytes / 1e6:.1f} MB, ONNX opset {report.opset}"
    )
    table.add_row("against PyTorch", _parity_words(report.parity))
    if report.simplified:
        table.add_row("onnxsim", _simplified_words(report.simplified))
    if report.seconds:
        table.add_row("time", ", ".join(f"{name} {value:.1f} s" for name, value in report.seconds.items()))
    return table


def _parity_words(parity: dict[str, Any]) -> str:
    shapes = f"on {len(parity['shapes'])} shapes of batch and length that were not traced"
    if parity["sqnr_db"] is None:
        return f"[green]the same numbers[/] {shapes}"
    return (
        f"[green]equal[/] {shapes}: logits differ by {parity['max_abs']:.1e} at most (SQNR {parity['sqnr_db']:.0f} "
        f"dB), the best token is the same in {parity['argmax_agreement']:.2f} % of frames"
    )


def _simplified_words(simplified: dict[str, Any]) -> str:
    from rich.markup import escape

    before, after = simplified["nodes_before"], simplified["nodes_after"]
    if not simplified["kept"]:
        return f"[yellow]not used[/]: {escape(simplified['reason'])}"
    if before == after:
        return f"found nothing to simplify ({before} nodes)"
    return f"{before} nodes became {after}"
