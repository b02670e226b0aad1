"""`svtool export` from outside: the graph against PyTorch, what it refuses, and the directory it leaves."""

from __future__ import annotations

import errno
import json
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
import torch
import yaml
from rich.console import Console

from checkpoints import random_state, write_checkpoint
from svtool import graph as graphs
from svtool import interop
from svtool.assets import BPE_NAME, CHECKPOINT_NAME, CMVN_NAME, CONFIG_NAME, CONFIGURATION_NAME, find_assets
from svtool.backends.onnxrt import open_session
from svtool.errors import ArtifactError, MissingDependency, SvtoolError, UsageError
from svtool.export import (
    IR_VERSION,
    SWEEP,
    TRACED,
    ExportOptions,
    ExportReport,
    _why,
    check_axes,
    compare_with_torch,
    export,
    render,
    trace,
)
from svtool.manifest import manifest_path, read_manifest, sha256_file
from svtool.model import ModelConfig, SenseVoice, load_checkpoint
from svtool.progress import Silent

INPUTS = ("speech", "speech_lengths", "language", "textnorm")
FILES = {
    *("model.onnx", "model.onnx.json", "config.yaml", "configuration.json", "am.mvn"),
    *("chn_jpn_yue_eng_ko_spectok.bpe.model", "tokens.txt", "tokens.json"),
}


class Notes(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, message: str) -> None:
        self.said.append(message)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "small")


@pytest.fixture(scope="module")
def report(source: Path, tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    return export(str(source), tmp_path_factory.mktemp("engines") / "small", ExportOptions())


@pytest.fixture(scope="module")
def network(source: Path) -> SenseVoice:
    return load_checkpoint(find_assets(str(source)))


@pytest.fixture(scope="module")
def proto(report: ExportReport) -> onnx.ModelProto:
    return onnx.load(report.model)


def feed(batch: int, frames: int) -> dict[str, np.ndarray]:
    """Noise, not zeroed where padded; no two lengths alike where there is room."""
    rng = np.random.default_rng([batch, frames])
    return {
        "speech": rng.standard_normal((batch, frames, 560)).astype(np.float32),
        "speech_lengths": np.maximum(1, frames - np.arange(batch) * 2).astype(np.int32),
        "language": rng.choice([0, 3, 4, 7, 11, 12], batch).astype(np.int32),
        "textnorm": rng.choice([14, 15], batch).astype(np.int32),
    }


def in_torch(network: SenseVoice, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    with torch.inference_mode():
        return [out.numpy() for out in network(*(torch.from_numpy(inputs[name]) for name in INPUTS))]


def in_onnx(model: Path, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(open_session(model, ["CPUExecutionProvider"]).run(["ctc_logits", "encoder_out_lens"], inputs))


def assert_equal(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    np.testing.assert_array_equal(found[1], wanted[1])
    assert found[0].shape == wanted[0].shape
    for item, length in enumerate(wanted[1]):
        np.testing.assert_allclose(found[0][item, :length], wanted[0][item, :length], atol=1e-4)


@pytest.mark.case("E1", "E2")
def test_every_batch_and_length_equals_pytorch(report: ExportReport, network: SenseVoice) -> None:
    session = open_session(report.model, ["CPUExecutionProvider"])
    for batch, frames in [(b, t) for b in (1, 2, 3, 5) for t in (1, 7, 30, 171)]:
        inputs = feed(batch, frames)
        assert_equal(session.run(None, inputs), in_torch(network, inputs))


@pytest.mark.case("E1")
def test_the_command_itself_ran_shapes_that_were_not_traced(report: ExportReport) -> None:
    assert TRACED[0] >= 2
    assert all(TRACED[1] % divisor for divisor in range(2, TRACED[1]))
    assert {tuple(shape) for shape in report.parity["shapes"]} == set(SWEEP)
    assert all(batch != TRACED[0] and frames != TRACED[1] for batch, frames in SWEEP)
    assert report.parity["max_abs"] < 1e-4
    assert report.parity["sqnr_db"] > report.parity["min_sqnr_db"] == 80
    assert report.parity["argmax_agreement"] == 100


@pytest.mark.case("E5", "E1")
def test_axes_have_the_names_that_others_rely_on(proto: onnx.ModelProto) -> None:
    found = {
        value.name: (
            value.type.tensor_type.elem_type,
            [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim],
        )
        for value in (*proto.graph.input, *proto.graph.output)
    }
    ints = (onnx.TensorProto.INT32, ["batch_size"])
    assert list(found.items()) == [
        ("speech", (onnx.TensorProto.FLOAT, ["batch_size", "feats_length", 560])),
        ("speech_lengths", ints),
        ("language", ints),
        ("textnorm", ints),
        ("ctc_logits", (onnx.TensorProto.FLOAT, ["batch_size", "logits_length", 400])),
        ("encoder_out_lens", ints),
    ]
    inner = {dim.dim_param for value in proto.graph.value_info for dim in value.type.tensor_type.shape.dim}
    assert not {name for name in inner if "+" in name}


def fix_batch(model: Any) -> None:
    model.graph.inputs[0].shape = onnx_ir.Shape([3, "feats_length", 560])


def fix_time(model: Any) -> None:
    model.graph.outputs[0].shape = onnx_ir.Shape(["batch_size", 65, 400])


def other_batch_name(model: Any) -> None:
    model.graph.inputs[2].shape = onnx_ir.Shape(["s0"])


def expression(model: Any) -> None:
    model.graph.outputs[0].shape = onnx_ir.Shape(["batch_size", "feats_length + 4", 400])


def loose_width(model: Any) -> None:
    model.graph.inputs[0].shape = onnx_ir.Shape(["batch_size", "feats_length", "width"])


def no_shape(model: Any) -> None:
    model.graph.outputs[1].shape = None


def missing_output(model: Any) -> None:
    model.graph.outputs.pop()


def renamed_output(model: Any) -> None:
    model.graph.outputs[0].name = "logits"


@pytest.mark.case("E1", "E5")
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (fix_batch, "speech"),
        (fix_time, "ctc_logits"),
        (other_batch_name, "language"),
        (expression, "ctc_logits"),
        (loose_width, "speech"),
        (no_shape, "encoder_out_lens"),
        (missing_output, "encoder_out_lens"),
        (renamed_output, "logits"),
    ],
)
def test_a_graph_with_other_axes_fails_the_command(
    report: ExportReport, damage: Callable[[Any], None], said: str
) -> None:
    model = graphs.load_model(report.model)
    check_axes(model)
    damage(model)
    with pytest.raises(ArtifactError, match=said):
        check_axes(model)


class Baked(torch.nn.Module):
    """The contract's inputs and outputs around a reshape that holds a traced size."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(560, 5)

    def forward(self, speech: Any, speech_lengths: Any, language: Any, textnorm: Any) -> Any:
        wider = torch.cat([speech.reshape(-1, TRACED[1], 560), speech[:, :4]], dim=1)
        queries = (language + textnorm)[:, None, None]
        return self.head(wider) + queries, speech_lengths + 4


@pytest.mark.case("E1", "E2")
def test_a_size_baked_into_the_model_fails_the_command() -> None:
    with pytest.raises(SvtoolError, match=r"feats_length|dynamic batch and time") as caught:
        check_axes(trace(Baked().eval(), 18))
    assert "\n" not in str(caught.value)


@pytest.mark.case("E2")
def test_a_tracer_warning_is_an_error_while_exporting() -> None:
    from svtool.export import _strict_exporter

    def careless(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(int(x.sum()), -1)

    with pytest.raises(SystemError) as caught, _strict_exporter():
        torch.jit.trace(careless, torch.ones(4))
    assert isinstance(caught.value.__cause__, torch.jit.TracerWarning)


@pytest.mark.case("E4")
def test_constants_follow_the_models_device(source: Path) -> None:
    # `meta` stands for any device that is not the CPU: mixing the two raises
    with torch.device("meta"):
        model = SenseVoice(ModelConfig.from_assets(find_assets(str(source))))
    inputs = [torch.from_numpy(array).to("meta") for array in feed(2, 9).values()]
    logits, lens = model(*inputs)
    assert (logits.device.type, lens.device.type) == ("meta", "meta")
    assert logits.shape == (2, 13, 400)


@pytest.mark.gpu
@pytest.mark.case("E4")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_both_devices_give_equal_graphs(source: Path, report: ExportReport, tmp_path: Path) -> None:
    other = export(str(source), tmp_path / "cuda", ExportOptions(device="cuda"))
    inputs = feed(3, 30)
    assert_equal(in_onnx(other.model, inputs), in_onnx(report.model, inputs))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_where_there_is_none_is_an_error(source: Path, tmp_path: Path) -> None:
    with pytest.raises(SvtoolError, match="no CUDA device here: use --device cpu"):
        export(str(source), tmp_path / "out", ExportOptions(device="cuda"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.case("E6")
def test_the_longest_audio_allowed_runs(report: ExportReport, network: SenseVoice) -> None:
    frames = read_manifest(report.model)["max_frames"]
    assert frames == 4096
    inputs = feed(1, frames)
    assert_equal(in_onnx(report.model, inputs), in_torch(network, inputs))


@pytest.mark.case("E7")
def test_ir_and_opset_are_ones_that_older_runtimes_read(proto: onnx.ModelProto) -> None:
    assert proto.ir_version == IR_VERSION == 10
    assert [(one.domain, one.version) for one in proto.opset_import] == [("", 18)]
    assert not proto.functions


@pytest.mark.case("E7")
def test_a_file_that_the_installed_runtime_refuses_fails_the_command(
    report: ExportReport, network: SenseVoice, tmp_path: Path
) -> None:
    newer = onnx.load(report.model)
    newer.ir_version = 99
    onnx.save(newer, tmp_path / "model.onnx")
    with pytest.raises(ArtifactError, match="ONNX Runtime"):
        compare_with_torch(network, tmp_path / "model.onnx", Silent())


def test_the_graph_is_what_the_precision_passes_need(
    report: ExportReport, proto: onnx.ModelProto, network: SenseVoice
) -> None:
    ops = [node.op_type for node in proto.graph.node]
    blocks = 2 + 1
    assert ops.count("LayerNormalization") == 2 * blocks + 2
    assert ops.count("Conv") == blocks
    assert not {"Gemm", "Slice", "Pad", "ReduceMean", "Pow", "Sqrt", "If", "Loop"} & set(ops)
    # every tensor of the checkpoint is in the graph under its own name, linear weights transposed
    weights = {one.name: list(one.dims) for one in proto.graph.initializer}
    for name, tensor in network.state_dict().items():
        linear = tensor.dim() == 2 and not name.startswith("embed")
        assert weights[name] == list(tensor.shape)[:: -1 if linear else 1]
    linears = list(graphs.linears(graphs.load_model(report.model)))
    assert len(linears) == 4 * blocks + 1
    assert all(one.bias is not None for one in linears)
    assert not any(one.external_data for one in proto.graph.initializer)


def test_a_graph_that_differs_from_pytorch_fails_the_command(
    report: ExportReport, source: Path, network: SenseVoice
) -> None:
    other = SenseVoice(network.config)
    other.load_state_dict(random_state(source, seed=1))
    with pytest.raises(ArtifactError, match="differs from PyTorch"):
        compare_with_torch(other.eval(), report.model, Silent())


@pytest.mark.parametrize("side", ["PyTorch", "graph"])
def test_logits_that_are_not_finite_fail_the_command(
    report: ExportReport, source: Path, network: SenseVoice, tmp_path: Path, side: str
) -> None:
    model, path = network, report.model
    if side == "PyTorch":
        model = SenseVoice(network.config)
        model.load_state_dict(network.state_dict())
        model.ctc.ctc_lo.bias.data[7] = float("nan")
    else:
        broken = onnx.load(report.model)
        bias = next(one for one in broken.graph.initializer if one.name == "ctc.ctc_lo.bias")
        numbers = onnx.numpy_helper.to_array(bias).copy()
        numbers[7] = np.nan
        bias.CopyFrom(onnx.numpy_helper.from_array(numbers, bias.name))
        path = tmp_path / "model.onnx"
        onnx.save(broken, path)
    with pytest.raises(ArtifactError, match="not finite"):
        compare_with_torch(model.eval(), path, Silent())


@pytest.mark.case("E12")
def test_options_and_checkpoint_are_in_the_model_and_its_manifest(
    report: ExportReport, proto: onnx.ModelProto, source: Path
) -> None:
    inside = {one.key: one.value for one in proto.metadata_props}
    manifest = read_manifest(report.model)
    checkpoint = sha256_file(source / CHECKPOINT_NAME)
    assert inside["svtool.checkpoint_sha256"] == checkpoint
    assert manifest["source"]["files"][CHECKPOINT_NAME] == checkpoint
    for key, value in manifest["options"].items():
        assert inside[f"svtool.export.{key}"] == str(value)
    assert {"torch", "onnx", "onnxscript", "svtool", "python"} <= set(manifest["built_with"])
    assert manifest["sha256"] == sha256_file(report.model)
    assert manifest["kind"], manifest["head"] == ("model", "logits")
    assert manifest["parity"] == report.parity
    assert manifest["tag_ids"] == [int(one) for one in inside["svtool.tag_ids"].split(",")]


@pytest.mark.case("E12")
def test_a_changed_option_exports_again_into_the_same_directory(
    report: ExportReport, source: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "again"
    folder.mkdir()
    for path in report.model.parent.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "int8.plan").write_bytes(b"an engine beside it stays")
    again = export(str(source), folder, ExportOptions(simplify=False))
    assert not again.unchanged
    assert again.simplified is None
    inside = {one.key: one.value for one in onnx.load(again.model).metadata_props}
    assert inside["svtool.export.simplify"] == "False"
    assert (folder / "int8.plan").is_file()
    inputs = feed(3, 30)
    assert_equal(in_onnx(again.model, inputs), in_onnx(report.model, inputs))
    # the same checkpoint gives the same graph: calibration caches are keyed by this digest
    digests = [read_manifest(one.model)["onnx_digest"] for one in (report, again)]
    assert digests[0] == digests[1]


def test_the_same_export_again_does_nothing_and_says_so(report: ExportReport, source: Path) -> None:
    times = {path: path.stat().st_mtime_ns for path in report.model.parent.iterdir()}
    notes = Notes()
    again = export(str(source), report.model.parent, ExportOptions(), notes)
    assert again.unchanged
    assert {path: path.stat().st_mtime_ns for path in report.model.parent.iterdir()} == times
    assert any("up to date" in line and "--force" in line for line in notes.said)
    assert (again.parity, again.nodes, again.size_bytes) == (report.parity, report.nodes, report.size_bytes)


@pytest.mark.parametrize("what", ["other checkpoint", "file missing", "model changed", "forced"])
def test_a_failed_export_leaves_what_was_there(
    report: ExportReport, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Each change makes svtool export again; the broken checkpoint then fails it."""
    folder, broken = tmp_path / "engine", tmp_path / "small"
    for old, new in ((report.model.parent, folder), (source, broken)):
        new.mkdir()
        for path in old.iterdir():
            (new / path.name).write_bytes(path.read_bytes())
    if what == "other checkpoint":
        (broken / CHECKPOINT_NAME).write_bytes(b"PK no checkpoint")
    elif what == "file missing":
        (folder / "tokens.txt").unlink()
    elif what == "model changed":
        (folder / "model.onnx").write_bytes(b"edited")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    # an exporter that cannot run stops the export after it was decided on
    if what != "other checkpoint":
        monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises((ArtifactError, MissingDependency)):
        export(str(broken), folder, ExportOptions(force=what == "forced"))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["engine", "small"]


@pytest.mark.case("E11")
@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        (("model",), "Paraformer", "model is 'Paraformer'"),
        (("encoder",), "SANMEncoder", "encoder is 'SANMEncoder'"),
        (("frontend_conf", "lfr_m"), 5, "lfr_m is 5"),
        (("frontend_conf", "n_mels"), 40, "n_mels is 40"),
        (("encoder_conf", "output_size"), 64, "wrong shape"),
        (("encoder_conf", "num_blocks"), 3, "missing"),
    ],
)
def test_other_model_families_are_refused_before_exporting(
    source: Path, tmp_path: Path, keys: tuple[str, ...], value: object, said: str
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = yaml.safe_load((folder / CONFIG_NAME).read_text(encoding="utf-8"))
    section = config
    for key in keys[:-1]:
        section = section[key]
    section[keys[-1]] = value
    (folder / CONFIG_NAME).write_text(yaml.safe_dump(config), encoding="utf-8")
    with pytest.raises(ArtifactError, match=said):
        export(str(folder), tmp_path / "out", ExportOptions())
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


@pytest.mark.case("E11")
def test_a_head_that_does_not_fit_the_tokenizer_is_refused(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    state = torch.load(folder / CHECKPOINT_NAME, weights_only=True)
    for name in ("ctc.ctc_lo.weight", "ctc.ctc_lo.bias"):
        state[name] = state[name][:-1].clone()
    torch.save(state, folder / CHECKPOINT_NAME)
    with pytest.raises(ArtifactError, match=r"399 tokens, .* has 400 \(ctc\.ctc_lo\.weight \[399, 32\]\)"):
        export(str(folder), tmp_path / "out", ExportOptions())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (ExportOptions(opset=16), "opset 16"),
        (ExportOptions(opset=99), "opset 99"),
        (ExportOptions(device="gpu"), "cpu, cuda or cuda:N"),
    ],
)
def test_impossible_options(source: Path, tmp_path: Path, options: ExportOptions, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        export(str(source), tmp_path / "out", options)


def test_files_of_somebody_else_are_not_replaced(source: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("mine: true")
    with pytest.raises(UsageError, match=r"config\.yaml that svtool did not write"):
        export(str(source), tmp_path)
    assert (tmp_path / "config.yaml").read_text() == "mine: true"


def test_folders_that_must_not_be_written(source: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    with pytest.raises(UsageError, match="holds the checkpoint"):
        export(str(source), source.parent / "." / source.name, ExportOptions())
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(UsageError, match="is a file"):
        export(str(source), file, ExportOptions())
    with pytest.raises(SvtoolError, match="a part of that path is a file; name another directory"):
        export(str(source), file / "below", ExportOptions())
    assert file.read_text() == "mine"
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before


@pytest.mark.parametrize("library", ["torch", "onnxscript"])
def test_without_torch_one_line_says_what_to_install(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependency, match=r"svtool export needs .*pip install -e '\.\[export\]'"):
        export(str(source), tmp_path / "out", ExportOptions())
    assert list(tmp_path.iterdir()) == []


def test_a_directory_without_a_checkpoint_is_refused(report: ExportReport, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no model\.pt"):
        export(str(report.model.parent), tmp_path / "out", ExportOptions())


def test_the_directory_is_complete(report: ExportReport, source: Path) -> None:
    folder = report.model.parent
    assert {path.name for path in folder.iterdir()} == FILES
    assert set(interop.FILES) < FILES
    for name in (CMVN_NAME, BPE_NAME):
        assert (folder / name).read_bytes() == (source / name).read_bytes()
    config, original = (yaml.safe_load((one / CONFIG_NAME).read_text()) for one in (folder, source))
    assert config["frontend_conf"].pop("dither") == 0.0
    assert config == original
    assert json.loads((folder / CONFIGURATION_NAME).read_text())["file_path_metas"]["frontend_conf"] == {
        "cmvn_file": CMVN_NAME
    }
    pieces = find_assets(str(folder)).tokens.pieces
    lines = (folder / "tokens.txt").read_text(encoding="utf-8").split("\n")
    assert lines == [*(f"{piece} {index}" for index, piece in enumerate(pieces)), ""]
    assert json.loads((folder / "tokens.json").read_text(encoding="utf-8")) == list(pieces)


def test_the_model_says_what_sherpa_onnx_asks(
    report: ExportReport, proto: onnx.ModelProto, source: Path
) -> None:
    inside = {one.key: one.value for one in proto.metadata_props}
    wanted = {
        "vocab_size": 400, "lfr_window_size": 7, "lfr_window_shift": 6, "normalize_samples": 0, "with_itn": 14,
        "without_itn": 15, "lang_auto": 0, "lang_zh": 3, "lang_en": 4, "lang_yue": 7, "lang_ja": 11, "lang_ko": 12,
    }  # fmt: skip
    assert {key: int(inside[key]) for key in wanted} == wanted
    cmvn = find_assets(str(source)).cmvn
    for key, values in (("neg_mean", cmvn.shift), ("inv_stddev", cmvn.scale)):
        np.testing.assert_allclose(np.array(inside[key].split(","), np.float32), values, rtol=1e-6)
    assert "Nano" not in inside["comment"]
    assert not [key for key in inside if key.startswith("onnxsim")]


def test_the_report(report: ExportReport) -> None:
    written = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert written["schema"] == "svtool.export/1"
    assert (written["unchanged"], written["opset"], written["source"]) == (False, 18, "small")
    assert set(written["seconds"]) == {"load", "export", "simplify", "parity"}
    console = Console(width=100, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(render(report))
    shown = capture.get()
    assert "on 16 shapes of batch and length that were not traced" in " ".join(shown.split())
    assert "onnxsim" in shown
    assert "->" not in shown
    assert manifest_path(report.model).is_file()


@pytest.mark.parametrize(
    ("kept", "after", "reason", "said"),
    [
        (True, 9, None, "found nothing to simplify (9 nodes)"),
        (True, 7, None, "9 nodes became 7"),
        (False, 9, "it crashed [signal 6]", "not used: it crashed [signal 6]"),
    ],
)
def test_the_report_says_what_became_of_simplifying(
    report: ExportReport, kept: bool, after: int, reason: str | None, said: str
) -> None:
    words = {"kept": kept, "nodes_before": 9, "nodes_after": after, "reason": reason}
    console = Console(width=200)
    with console.capture() as capture:
        console.print(render(replace(report, simplified=words, model=Path("[bold]/model.onnx"))))
    assert said in capture.get()
    assert "[bold]/model.onnx" in capture.get()


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "no space left"),
        (errno.EROFS, "name another directory with -o"),
        (errno.EACCES, "name another directory with -o"),
        (errno.EIO, "engines/x: "),
    ],
)
def test_what_the_system_refuses_is_told_with_what_helps(number: int, said: str) -> None:
    words = _why(OSError(number, os.strerror(number), "engines/x"))
    assert said in words
    assert "Errno" not in words
    assert ".svtool-" not in _why(OSError(number, os.strerror(number), "engines/.svtool-export-x-1/finished"))


def test_nothing_warns_outside_the_exporter() -> None:
    """The exporter's silence ends with it."""
    from svtool.export import _strict_exporter

    with _strict_exporter():
        warnings.warn("hidden", stacklevel=1)
    with pytest.warns(UserWarning, match="seen"):
        warnings.warn("seen", stacklevel=1)
