from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from typer.testing import CliRunner

import graph_runs
import small_graph
from calibration_samples import Notes, noise
from svtool import build_ranges, manifest, parity, quantize
from svtool import graph as graphs
from svtool.artifacts import default_artifact
from svtool.backends import Batch, load_backend
from svtool.backends.onnxrt import CPU_INT8, INPUTS, OnnxRuntimeBackend
from svtool.build_ort import OrtOptions, _rows, build_ort
from svtool.calibration import calibrate, save_cache
from svtool.cli import app
from svtool.errors import ArtifactError, SvtoolError, UsageError
from svtool.sqnr import sqnr_db

runner = CliRunner()
INT16 = 32767


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model with a finished cache, and engines of every precision beside it."""
    folder = tmp_path_factory.mktemp("small")
    small_graph.write(folder / "model.onnx")
    save_cache(folder / "ranges.json", calibrate(folder / "model.onnx", noise(70), threads=1))
    for precision in ("fp32", "int8"):
        cache = folder / "ranges.json" if precision == "int8" else None
        build_ort(folder, OrtOptions(precision=precision, calibration=cache, threads=1))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """The model and its cache alone."""
    for name in ("model.onnx", "ranges.json"):
        shutil.copy(made / name, tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def _no_committed_caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_ranges, "COMMITTED", tmp_path_factory.mktemp("committed"))


@pytest.fixture(scope="module")
def tiny_engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model in a folder `engines/tiny` of its own, with its int8 engine."""
    folder = tmp_path_factory.mktemp("work") / "engines" / "tiny"
    folder.mkdir(parents=True)
    for path in tiny_model.parent.iterdir():
        if path.suffix != ".plan" and path.is_file() and not path.name.startswith(("int8", "fp16")):
            shutil.copy(path, folder)
    return build_ort(folder / "model.onnx", OrtOptions(precision="int8")).engine


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def batch_of(frames: int, lengths: tuple[int, ...]) -> Batch:
    feed = parity.make_feed(frames, lengths)
    return Batch(*(feed[name] for name in INPUTS))


def int8_weights(model: ir.Model) -> dict[str, np.ndarray[Any, Any]]:
    found = {name: value.const_value for name, value in model.graph.initializers.items()}
    return {name: one.numpy() for name, one in found.items() if one is not None and name.endswith("/int8")}


def loudest_pair(weight: np.ndarray[Any, Any]) -> int:
    """The largest sum that two neighbouring products of one column can reach, over 255."""
    rows = np.pad(weight.astype(np.int64), ((0, len(weight) % 2), (0, 0)))
    sides = [np.maximum(side, 0) for side in (rows, -rows)]
    return int(max((side[0::2] + side[1::2]).max() for side in sides))


def test_one_file_and_its_manifest(made: Path) -> None:
    names = {f"ort-{precision}.onnx{suffix}" for precision in ("fp32", "int8") for suffix in ("", ".json")}
    assert files(made) == {"model.onnx", "ranges.json"} | names
    described = manifest.read_manifest(made / "ort-int8.onnx")
    assert (described["kind"], described["runtime"], described["precision"]) == (
        "engine",
        "onnxruntime",
        "int8",
    )
    assert described["head"] == "greedy"
    assert described["tag_ids"] == list(small_graph.TAGS)
    assert len(described["precision_map"]["int8"]) == 12
    assert described["precision_map"]["fp32"] == ["ctc.ctc_lo"]
    assert 0.5 < described["int8_share"] < 1
    assert described["calibration"]["used"] == 70
    assert described["parity"]["sqnr_db"] > 20
    assert described["options"] == {
        "command": "build-ort", "precision": "int8", "head": "greedy", "device": "cpu", "int8_form": CPU_INT8,
    }  # fmt: skip
    assert described["onnx_digest"] == graphs.model_digest(graphs.load_model(made / "model.onnx"))


def test_keys_are_those_of_other_engines(made: Path) -> None:
    described = manifest.read_manifest(made / "ort-fp32.onnx")
    assert {
        *("schema", "artifact", "sha256", "size_bytes", "created", "kind", "runtime", "precision", "source"),
        *("model", "onnx_digest", "tag_ids", "vocab_size", "parity", "precision_map", "int8_share", "pinned"),
        *("calibration", "search", "verified_on_gpu", "head", "max_frames", "options", "built_with"),
    } <= set(described)
    assert described["calibration"] is None
    assert described["parity"]["sqnr_db"] is None  # the same logits


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_ids_are_those_of_the_engines_own_logits(made: Path, precision: str) -> None:
    engine = made / f"ort-{precision}.onnx"
    plain = load_backend(engine, threads=1).infer(batch_of(37, (31, 5)))
    assert plain.logits is None
    shown = OnnxRuntimeBackend(engine, threads=1, logits=True).infer(batch_of(37, (31, 5)))
    assert shown.logits is not None
    for row, length in enumerate(plain.logit_lens):
        assert (plain.token_ids[row, :length] == shown.logits[row, :length].argmax(-1)).all()
    np.testing.assert_array_equal(plain.token_logprobs, shown.token_logprobs)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_an_utterance_alone_equals_itself_in_a_padded_batch(made: Path, precision: str) -> None:
    backend = OnnxRuntimeBackend(made / f"ort-{precision}.onnx", threads=1, logits=True)
    together = batch_of(37, (31, 17, 5))
    whole = backend.infer(together)
    alone = backend.infer(
        Batch(
            together.feats[1:2, :17], together.feat_lens[1:2], together.language[1:2], together.textnorm[1:2]
        )
    )
    assert whole.logits is not None
    assert alone.logits is not None
    found = sqnr_db(whole.logits[1, :21], alone.logits[0])
    assert found is not None
    assert found > 40  # equal, but for sums that another CPU may take in another order


@pytest.mark.case("Q12")
@pytest.mark.parametrize("seed", [0, 1])
def test_no_pair_of_products_leaves_16_bits(seed: int) -> None:
    """Whatever the activations are, and with weights made to break it: neighbours as loud as can be."""
    proto = small_graph.make(seed=seed)
    model = ir.from_proto(proto)
    rng = np.random.default_rng(seed)
    for linear in graphs.linears(model):
        weight = linear.node.inputs[1]
        assert weight is not None
        loud = rng.choice([-3.0, 2.9, 3.0], size=linear.shape).astype(np.float32)
        weight.const_value = ir.Tensor(loud, name=str(weight.name))
    amax = dict.fromkeys((linear.source for linear in graphs.linears(model)), 4.0)
    for passed, safe in ((quantize.to_int8, False), (quantize.to_int8_cpu, True)):
        pairs = [loudest_pair(weight) for weight in int8_weights(passed(model, amax)).values()]
        assert len(pairs) == 12
        assert (max(pairs) * 255 <= INT16) is safe


@pytest.mark.case("Q12")
def test_16_bit_sums_are_exact_sums(made: Path) -> None:
    """What a CPU without VNNI does, in numpy, on the engine's own weights and the loudest activations."""
    model = graphs.load_model(made / "ort-int8.onnx")
    rng = np.random.default_rng(5)
    for weight in int8_weights(model).values():
        loud = rng.choice([0, 255], size=(200, len(weight)))
        # the worst rows: all that a column's positive, or negative, weights are multiplied with
        loud[:48] = np.where(weight.T[:48] > 0, 255, 0)[np.arange(48) % weight.shape[1]]
        products = loud[:, :, None] * weight[None].astype(np.int64)
        pairs = products[:, 0::2] + products[:, 1::2]
        assert (np.clip(pairs, -INT16 - 1, INT16) == pairs).all()


def test_what_relu_gives_uses_all_of_uint8(made: Path) -> None:
    model = graphs.load_model(made / "model.onnx")
    amax = graph_runs.linear_ranges(model)
    chosen = quantize.to_int8_cpu(model, amax)
    zeros = {
        int(one.const_value.numpy())
        for name, one in chosen.graph.initializers.items()
        if name.endswith("relu/zero") and one.const_value is not None
    }
    assert zeros == {0}
    feed = parity.make_feed(60, (60, 41))
    wanted = graph_runs.run(model, feed)[0]
    plain, ours = (
        graph_runs.sqnr_db(wanted, graph_runs.run(one, feed)[0])
        for one in (quantize.to_int8(model, amax), chosen)
    )
    assert ours > plain - 2.5  # coarser weights where pairs are loud, finer activations behind a Relu


def test_the_pass_is_deterministic_leaves_its_argument_and_refuses_a_second_time(made: Path) -> None:
    model = graphs.load_model(made / "model.onnx")
    amax, before = graph_runs.linear_ranges(model), graph_runs.as_bytes(model)
    one, two = (quantize.to_int8_cpu(model, amax) for _ in range(2))
    assert graph_runs.as_bytes(one) == graph_runs.as_bytes(two)
    assert graph_runs.as_bytes(model) == before
    with pytest.raises(ArtifactError, match="quantized already"):
        quantize.to_int8_cpu(one, amax)


def test_with_the_logits_head_everything_leaves_the_engine(folder: Path, made: Path) -> None:
    report = build_ort(folder, OrtOptions(head="logits", threads=1))
    assert manifest.read_manifest(report.engine)["head"] == "logits"
    batch = batch_of(37, (31, 5))
    whole, greedy = (
        load_backend(one, threads=1).infer(batch) for one in (report.engine, made / "ort-fp32.onnx")
    )
    assert whole.logits is not None
    for row, length in enumerate(whole.logit_lens):
        assert (whole.token_ids[row, :length] == greedy.token_ids[row, :length]).all()


def test_layers_can_be_kept_in_float32(folder: Path) -> None:
    options = OrtOptions(precision="int8", calibration=folder / "ranges.json", keep=("*.w_2",), threads=1)
    report = build_ort(folder / "model.onnx", options)
    assert report.quantized_layers == 9
    described = manifest.read_manifest(report.engine)
    assert all(".w_2" not in name for name in described["precision_map"]["int8"])
    assert len(described["pinned"]) == 3
    json.dumps(report.to_json(), allow_nan=False)
    assert "9 layers" in dict(_rows(report))["int8"]


@pytest.mark.parametrize(
    ("options", "said", "form"),
    [
        (OrtOptions(precision="int8", device="cuda", threads=1), "has not been measured", False),
        (OrtOptions(precision="fp16", threads=1), "no faster", False),
    ],
)
def test_what_is_no_gain_is_said(folder: Path, options: OrtOptions, said: str, form: bool) -> None:
    notes = Notes()
    report = build_ort(folder, dataclasses.replace(options, calibration=folder / "ranges.json"), notes)
    assert any(said in one for one in notes.seen)
    assert any(said in one for one in report.warnings)
    described = manifest.read_manifest(report.engine)
    assert ("int8_form" in described["options"]) is form
    assert described["provider"] == options.device
    assert described["precision_map"]["fp16"] or options.precision == "int8"
    assert load_backend(report.engine, threads=1).infer(batch_of(9, (9,))).token_ids.shape == (1, 13)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"precision": "int4"}, UsageError, "fp32, fp16, int8"),
        ({"device": "npu"}, UsageError, "cpu, cuda"),
        ({"output": Path("x.plan")}, UsageError, "does not end in .onnx"),
        ({"precision": "int8", "data": "a", "calibration": Path("b")}, UsageError, "exclude each other"),
        ({"keep": ("*",)}, UsageError, "give it with --int8"),
        ({"calibration": Path("b")}, UsageError, "needs no ranges"),
        ({"precision": "int8"}, UsageError, "needs audio to calibrate"),
        ({"precision": "int8", "calibration": Path("absent.json")}, SvtoolError, "absent.json"),
    ],
)
def test_refusals_leave_nothing_behind(
    folder: Path, changes: dict[str, Any], error: type[SvtoolError], said: str
) -> None:
    before = files(folder)
    with pytest.raises(error, match=said):
        build_ort(folder / "model.onnx", OrtOptions(threads=1, **changes))
    assert files(folder) == before


def test_a_cache_of_another_model_is_refused(folder: Path) -> None:
    small_graph.write(folder / "model.onnx", seed=9)
    before = files(folder)
    with pytest.raises(ArtifactError, match="another model"):
        build_ort(folder, OrtOptions(precision="int8", calibration=folder / "ranges.json", threads=1))
    assert files(folder) == before


def test_neither_the_model_nor_a_twin_is_overwritten(folder: Path, made: Path) -> None:
    with pytest.raises(UsageError, match="would replace the model"):
        build_ort(folder, OrtOptions(output=folder / "model.onnx"))
    (folder / "int8.plan").touch()
    with pytest.raises(UsageError, match=r"twin of int8\.plan"):
        build_ort(folder, OrtOptions(output=folder / "int8.onnx"))
    with pytest.raises(ArtifactError, match="greedy head"):
        build_ort(made / "ort-fp32.onnx", OrtOptions(output=folder / "again.onnx"))


def test_an_engine_that_cannot_be_published_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(manifest, "write_manifest", full)
    before = files(folder)
    with pytest.raises(OSError, match="No space"):
        build_ort(folder, OrtOptions(threads=1))
    assert files(folder) == before


def test_a_damaged_engine_names_its_own_command(made: Path, tmp_path: Path) -> None:
    for name in ("ort-int8.onnx", "ort-int8.onnx.json"):
        shutil.copy(made / name, tmp_path)
    with (tmp_path / "ort-int8.onnx").open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(ArtifactError, match=r"svtool build-ort .*model\.onnx --int8"):
        load_backend(tmp_path / "ort-int8.onnx")


def test_whichever_engine_was_built_is_one_idea(tiny_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transcribe finds it by itself, validate-wer compares it by itself, with SQNR from the logits inside."""
    from svtool import tiny

    monkeypatch.chdir(tiny_engine.parents[2])
    assert default_artifact().name == "ort-int8.onnx"
    clip = tiny.render("calibration").parent / "clean-0000.wav"
    ours, theirs = (
        runner.invoke(app, ["transcribe", str(clip), *model])
        for model in ([], ["-m", "engines/tiny/model.onnx"])
    )
    assert "using engines/tiny/ort-int8.onnx" in ours.stderr
    assert ours.stdout.strip()
    assert ours.stdout == theirs.stdout
    judged = runner.invoke(app, ["validate-wer", "--limit", "40", "--json", "--threads", "1"])
    report = json.loads(judged.stdout)
    assert report["candidate"]["artifact"].endswith("ort-int8.onnx")
    assert report["sqnr_db"] > 38
    assert report["executed"] is True
    assert report["disagreement"] < 2


def test_it_is_served_like_any_engine(tiny_engine: Path) -> None:
    from svtool.recognizer import open_recognizer
    from svtool.serving.service import describe, warm

    recognizer = open_recognizer(tiny_engine, threads=1)
    warm(recognizer)
    engine = describe(recognizer, tiny_engine)
    assert (engine.precision, engine.is_tiny) == ("int8", True)
    recognizer.close()


def test_the_command(folder: Path) -> None:
    done = runner.invoke(app, ["build-ort", str(folder), "--json", "-q", "--threads", "1"])
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    assert report["schema"] == "svtool.build-ort/1"
    assert Path(report["engine"]) == folder / "ort-fp32.onnx"
    assert runner.invoke(app, ["build-ort", str(folder), "--int8", "--fp16"]).exit_code == 2
