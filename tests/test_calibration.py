from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import small_graph
from calibration_samples import Notes, noise, write_wave
from svtool import graph as graphs
from svtool import parity, precision
from svtool.assets import Assets
from svtool.calibration import (
    Calibration,
    Sample,
    Skipped,
    calibrate,
    load_cache,
    read_samples,
    save_cache,
)
from svtool.errors import ArtifactError, UsageError
from svtool.utterances import read_utterances


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_graph.write(tmp_path_factory.mktemp("calibration") / "model.onnx")


@pytest.fixture(scope="module")
def made(model: Path) -> Calibration:
    return calibrate(
        model, noise(70), list_name="noise", list_digest="aa", frontend={"dither": 0}, threads=1, method="max"
    )


def test_every_linear_input_gets_a_range(model: Path, made: Calibration) -> None:
    layers = list(graphs.linears(graphs.load_model(model)))
    assert list(made.amax) == [layer.source for layer in layers]
    assert all(value > 0 for value in made.amax.values())
    assert made.used == 70
    assert made.warnings == ()
    residuals = {str(node.outputs[0].name) for node in graphs.residual_adds(graphs.load_model(model))}
    assert residuals <= set(made.absmax)
    assert "x" in made.absmax  # input of the first norm


def test_max_equals_what_the_tensors_hold(model: Path) -> None:
    """Against numpy over whole activations, utterance by utterance."""
    proto = onnx.load(model)
    name = "encoder.encoders.0.relu"
    proto.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    import onnxruntime

    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    values = []
    for sample in noise(5):
        ids = {"language": sample.language, "textnorm": sample.textnorm, "speech_lengths": len(sample.feats)}
        feed = {key: np.array([number], np.int32) for key, number in ids.items()} | {
            "speech": sample.feats[None]
        }
        values.append(np.abs(session.run([name], feed)[0]).ravel())
    everything = np.concatenate(values)
    by_max = calibrate(model, noise(5), method="max", threads=1)
    assert by_max.amax[name] == pytest.approx(float(everything.max()), rel=1e-5)
    by_percentile = calibrate(model, noise(5), percentile=99.0, threads=1)
    exact = float(np.percentile(everything, 99.0))
    assert exact * 0.995 <= by_percentile.amax[name] <= exact * 1.03
    assert by_percentile.absmax[name] == pytest.approx(by_max.amax[name], rel=1e-5)


def test_weights_may_be_stored_outside_the_file(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(
        onnx.load(model), path, save_as_external_data=True, location="model.onnx.data", size_threshold=1024
    )
    inside = calibrate(model, noise(3), threads=1)
    assert calibrate(path, noise(3), threads=1).to_json() == inside.to_json()
    monkeypatch.setattr("svtool.calibration._INLINE_BYTES", 0)  # as a large model: by way of a file
    assert calibrate(path, noise(3), threads=1).to_json() == inside.to_json()
    half = precision.to_fp16(graphs.load_model(path))
    (tmp_path / "half").mkdir()
    graphs.save_model(half, tmp_path / "half" / "twin.onnx")
    assert parity.compare(path, tmp_path / "half" / "twin.onnx", threads=1).sqnr_db > 50


@pytest.mark.case("Q4", "Q7")
@pytest.mark.parametrize("method", ["max", "percentile"])
def test_real_lengths_run_and_longer_ones_are_counted(model: Path, method: str) -> None:
    lengths = (8, 50, 200, 501, 0)  # 0.5, 3, 12 and over 30 seconds; too short for a frame
    samples = [Sample(f"{n}", np.full((n, 560), 0.3, np.float32), 0, 15) for n in lengths]
    notes = Notes()
    made = calibrate(model, samples, method=method, threads=1, progress=notes)
    assert made.used == 3
    assert made.skipped == {"too_long": 1, "too_short": 1}
    assert any("2 utterances were skipped (1 too_long, 1 too_short)" in line for line in notes.seen)


def test_padding_cannot_reach_the_ranges(model: Path, made: Calibration) -> None:
    """Each utterance runs alone at its natural length; the same ones in another order give the same ranges."""
    again = calibrate(model, reversed(list(noise(70))), method="max", threads=1)
    assert dict(again.amax) == pytest.approx(dict(made.amax), rel=1e-6)


def test_bad_samples_are_named_with_their_shape(model: Path) -> None:
    with pytest.raises(ArtifactError, match=r"'narrow' has features float32 \[9, 80\]"):
        calibrate(model, [Sample("narrow", np.zeros((9, 80), np.float32), 0, 15)], threads=1)
    with pytest.raises(ArtifactError, match="is not finite for the utterance 'nan'"):
        calibrate(model, [Sample("nan", np.full((9, 560), np.nan, np.float32), 0, 15)], threads=1)
    with pytest.raises(ArtifactError, match=r"failed on the utterance 'odd' of shape \[9, 560\]"):
        calibrate(model, [Sample("odd", np.ones((9, 560), np.float32), 99, 15)], threads=1)


def test_warnings_say_what_is_wrong_with_the_list(model: Path) -> None:
    samples = [sample._replace(clipped=True) for sample in noise(3, spoken="en")]
    made = calibrate(
        model, [*samples, Skipped("s", "silent"), Skipped("b", "not_audio")], threads=1, multilingual=True
    )
    text = "\n".join(made.warnings)
    for words in (
        "only 3 utterances",
        "1 not_audio, 1 silent",
        "3 of 3 utterances are clipped",
        "every utterance is en",
    ):
        assert words in text
    both = [*noise(2, spoken="en"), *noise(2, spoken="zh")]
    assert "every utterance" not in "\n".join(calibrate(model, both, threads=1, multilingual=True).warnings)


def test_nothing_usable_is_an_error(model: Path) -> None:
    with pytest.raises(ArtifactError, match="no utterance of noise can calibrate: 2 silent"):
        calibrate(model, [Skipped("a", "silent"), Skipped("b", "silent")], list_name="noise", threads=1)
    with pytest.raises(UsageError, match="choose max, or percentile"):
        calibrate(model, [], method="entropy")


@pytest.mark.case("Q6")
def test_memory_does_not_follow_the_number_of_utterances(model: Path) -> None:
    code = (
        "import sys, resource, pathlib\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from calibration_samples import noise\nfrom svtool.calibration import calibrate\n"
        f"calibrate(pathlib.Path({str(model)!r}), noise(int(sys.argv[1]), least=100, most=120), threads=1)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    few, many = (
        int(
            subprocess.run(
                [sys.executable, "-c", code, count], capture_output=True, check=True, text=True
            ).stdout
        )
        for count in ("10", "200")
    )
    assert many < 1.1 * few


def digest_of(path: Path) -> str:
    return graphs.model_digest(graphs.load_model(path))


def test_cache_round_trip(model: Path, made: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "cache.json"
    save_cache(path, made)
    keys = {"list_digest": "aa", "frontend": {"dither": 0}, "method": "max"}
    loaded = load_cache(path, digest_of(model), **keys)  # type: ignore[arg-type]
    assert loaded == made
    assert loaded.digest == made.digest


@pytest.mark.case("Q2")
def test_cache_of_another_model_is_refused(made: Calibration, tmp_path: Path) -> None:
    save_cache(tmp_path / "cache.json", made)
    proto = small_graph.make()
    weight = next(w for w in proto.graph.initializer if w.name == "rates")
    changed = numpy_helper.to_array(weight).copy()
    changed[0, 0] += 1e-4
    weight.CopyFrom(numpy_helper.from_array(changed, "rates"))
    onnx.save(proto, tmp_path / "other.onnx")
    with pytest.raises(ArtifactError, match="calibrated for another model"):
        load_cache(tmp_path / "cache.json", digest_of(tmp_path / "other.onnx"))


@pytest.mark.case("Q2")
@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"list_digest": "bb"}, "another utterance list"),
        ({"frontend": {"dither": 1}}, "another front end"),
        ({"method": "percentile"}, "another method"),
        ({"percentile": 99.9}, "another percentile"),
    ],
)
def test_cache_of_other_settings_is_refused(
    made: Calibration, tmp_path: Path, wanted: dict[str, object], words: str
) -> None:
    save_cache(tmp_path / "cache.json", made)
    with pytest.raises(ArtifactError, match=words):
        load_cache(tmp_path / "cache.json", made.onnx_digest, **wanted)  # type: ignore[arg-type]


@pytest.mark.case("Q2")
def test_cache_of_another_version_is_refused(made: Calibration, tmp_path: Path) -> None:
    save_cache(tmp_path / "cache.json", replace(made, tool="0.0.9"))
    with pytest.raises(ArtifactError, match=r"another svtool version \(0\.0\.9"):
        load_cache(tmp_path / "cache.json", made.onnx_digest)


def test_damaged_caches_are_refused(made: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "cache.json"
    save_cache(path, made)
    whole = path.read_text(encoding="utf-8")
    name = next(iter(made.amax))

    def refused(text: str, words: str) -> None:
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ArtifactError, match=words):
            load_cache(path, made.onnx_digest)

    refused(whole[: len(whole) // 2], "truncated or damaged")
    refused("", "truncated or damaged")
    refused("[]", "format None")
    refused(
        json.dumps(json.loads(whole) | {"schema": "svtool.calibration/9"}), "format 'svtool.calibration/9'"
    )
    refused(json.dumps({key: value for key, value in json.loads(whole).items() if key != "amax"}), "damaged")
    refused(json.dumps(json.loads(whole) | {"surprise": 1}), "damaged")
    for bad in (float("nan"), float("inf"), -1.0, 0.0, "5", None, True):
        changed = json.loads(whole)
        changed["amax"][name] = bad
        refused(json.dumps(changed), f"the amax of '{name}' is")
    path.unlink()
    with pytest.raises(ArtifactError, match="does not exist"):
        load_cache(path, made.onnx_digest)


def test_silence_at_the_input_of_a_layer_is_an_error(tmp_path: Path) -> None:
    proto = small_graph.make()
    relu = next(node for node in proto.graph.node if node.output[0] == "encoder.encoders.0.relu")
    relu.op_type = "Sub"
    relu.input.append(relu.input[0])
    onnx.save(proto, tmp_path / "model.onnx")
    with pytest.raises(ArtifactError, match=r"'encoder\.encoders\.0\.relu' was zero in every utterance"):
        calibrate(tmp_path / "model.onnx", noise(2), threads=1)


def test_lists_are_read_lazily_with_reasons(tiny_assets: Assets, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tone = 0.3 * np.sin(np.arange(32000) / 20) + 0.05 * rng.standard_normal(32000)
    waves = {
        "good": tone,
        "loud": 5 * tone,
        "short": tone[:200],
        "long": np.tile(tone, 20),
        "silent": 0 * tone,
    }
    for name, samples in waves.items():
        write_wave(tmp_path / f"{name}.wav", samples)
    (tmp_path / "text.wav").write_text("these are only words", encoding="utf-8")
    names = [*waves, "text"]
    lines = [
        json.dumps({"audio": f"{name}.wav", "text": "x", "language": "en", "id": name}) for name in names
    ]
    (tmp_path / "list.jsonl").write_text("\n".join(lines), encoding="utf-8")
    found = list(read_samples(read_utterances(tmp_path / "list.jsonl"), tiny_assets))
    reasons = {sample.id: sample.reason for sample in found if isinstance(sample, Skipped)}
    assert reasons == {"short": "too_short", "long": "too_long", "silent": "silent", "text": "not_audio"}
    good, loud = (sample for sample in found if isinstance(sample, Sample))
    assert (good.clipped, loud.clipped) == (False, True)
    assert (good.language, good.textnorm, loud.language, loud.textnorm) == (0, 15, 4, 14)
    assert good.feats.shape == (33, 560)
    assert good.feats.dtype == np.float32
