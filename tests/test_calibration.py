from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import small_graph
from calibration_samples import Notes, noise, write_wave
from svtool import graph as graphs
from svtool import parity, precision, smooth
from svtool.assets import Assets
from svtool.audiofacts import audio_digest
from svtool.calibration import (
    METHODS,
    Calibration,
    Sample,
    Skipped,
    calibrate,
    check_complete,
    import_scales,
    load_cache,
    matched_scales,
    read_cache,
    read_samples,
    save_cache,
)
from svtool.errors import ArtifactError, UsageError
from svtool.manifest import sha256_bytes
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
    by_max = calibrate(model, noise(5), method="max", threads=1, score=False)
    assert by_max.amax[name] == pytest.approx(float(everything.max()), rel=1e-5)
    by_percentile = calibrate(model, noise(5), percentile=99.0, threads=1, score=False)
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
    inside = calibrate(model, noise(3), threads=1, score=False)
    assert calibrate(path, noise(3), threads=1, score=False).to_json() == inside.to_json()
    monkeypatch.setattr("svtool.ranges._INLINE_BYTES", 0)  # as a large model: by way of a file
    assert calibrate(path, noise(3), threads=1, score=False).to_json() == inside.to_json()
    half = precision.to_fp16(graphs.load_model(path))
    (tmp_path / "half").mkdir()
    graphs.save_model(half, tmp_path / "half" / "twin.onnx")
    assert parity.compare(path, tmp_path / "half" / "twin.onnx", threads=1).sqnr_db > 50


@pytest.mark.case("Q4", "Q7")
@pytest.mark.parametrize("method", METHODS)
def test_real_lengths_run_and_longer_ones_are_counted(model: Path, method: str) -> None:
    lengths = (8, 50, 200, 501, 0)  # 0.5, 3, 12 and over 30 seconds; too short for a frame
    samples = [Sample(f"{n}", np.full((n, 560), 0.3, np.float32), 0, 15) for n in lengths]
    notes = Notes()
    made = calibrate(model, samples, method=method, threads=1, progress=notes, score=False)
    assert made.used == 3
    assert made.frames == 8 + 50 + 200
    assert made.skipped == {"too_long": 1, "too_short": 1}
    words = "skipped 2 utterances: 1 too long (over 30 s), 1 too short (under 25 ms)"
    assert words in made.warnings
    assert {"skipped '501': too long (over 30 s)", "skipped '0': too short (under 25 ms)"} <= set(notes.seen)
    assert all(0 < made.amax[name] <= made.absmax[name] for name in made.amax)


def test_padding_cannot_reach_the_ranges(model: Path, made: Calibration) -> None:
    """Each utterance runs alone at its natural length; the same ones in another order give the same ranges."""
    again = calibrate(model, reversed(list(noise(70))), method="max", threads=1, score=False)
    assert dict(again.amax) == pytest.approx(dict(made.amax), rel=1e-6)


def test_bad_samples_are_named_with_their_shape(model: Path) -> None:
    with pytest.raises(ArtifactError, match=r"'narrow' has features float32 \[9, 80\]"):
        calibrate(model, [Sample("narrow", np.zeros((9, 80), np.float32), 0, 15)], threads=1)
    with pytest.raises(ArtifactError, match="is not finite for the utterance 'nan'"):
        calibrate(model, [Sample("nan", np.full((9, 560), np.nan, np.float32), 0, 15)], threads=1)
    with pytest.raises(ArtifactError, match=r"failed on the utterance 'odd' of shape \[9, 560\]"):
        calibrate(model, [Sample("odd", np.ones((9, 560), np.float32), 99, 15)], threads=1)


def test_warnings_say_what_is_wrong_with_the_list(model: Path) -> None:
    samples = list(noise(3, spoken="en"))
    samples[0] = samples[0]._replace(clipped=True)
    samples[1] = samples[1]._replace(quiet=True, zeros=True)
    skipped = [Skipped("s", "silent"), Skipped("b", "not_audio")]
    notes = Notes()
    made = calibrate(model, [*samples, *skipped], threads=1, multilingual=True, score=False, progress=notes)
    text = "\n".join(made.warnings)
    for words in (
        "used only 3 utterances",
        "of audio; ranges want at least 60 s",
        "skipped 2 utterances: 1 not audio, 1 silent",
        "clipped at full scale: 1 of 3 utterances",
        "very quiet (under -40 dBFS at their loudest): 1 of 3 utterances",
        "digital silence for more than 10% of their length: 1 of 3 utterances",
        "every utterance is en",
    ):
        assert words in text
    assert all(line.startswith("skipped '") for line in notes.seen)  # whoever shows the warnings says them


@pytest.mark.parametrize(
    ("spoken", "multilingual", "words"),
    [
        (("en", "zh"), True, None),
        (("en", "en"), False, None),
        (("en", "en"), True, "every utterance is en"),
        (("", ""), True, "names no languages"),
        (("xx", "yy"), True, "names no languages that the model knows"),
        (("en", ""), True, "every utterance of a known language is en"),
        (("en", "xx"), True, "every utterance of a known language is en"),
        (("auto", "zh"), True, "every utterance of a known language is zh"),
    ],
)
def test_one_language_is_told_where_there_are_more(
    model: Path, spoken: tuple[str, str], multilingual: bool, words: str | None
) -> None:
    samples = [one._replace(spoken=name) for name, one in zip(spoken, noise(2), strict=True)]
    made = calibrate(model, samples, threads=1, multilingual=multilingual, score=False)
    assert (
        any(words in one for one in made.warnings)
        if words
        else not any("languag" in one for one in made.warnings)
    )


def test_only_so_many_skipped_utterances_are_named(model: Path) -> None:
    notes = Notes()
    samples = [*noise(1), *(Skipped(f"s{index}", "silent") for index in range(30))]
    made = calibrate(model, samples, threads=1, score=False, progress=notes)
    assert len([line for line in notes.seen if line.startswith("skipped '")]) == 5
    assert "and 25 more skipped" in notes.seen
    assert any("skipped 30 utterances: 30 silent" in line for line in made.warnings)


def test_nothing_usable_is_an_error(model: Path) -> None:
    with pytest.raises(ArtifactError, match="no utterance of noise can calibrate: 2 silent"):
        calibrate(model, [Skipped("a", "silent"), Skipped("b", "silent")], list_name="noise", threads=1)
    with pytest.raises(
        ArtifactError, match=r"1 not there, 1 too short .*; see what is wrong with  svtool data check mine$"
    ):
        calibrate(model, [Skipped("a", "missing"), Skipped("b", "too_short")], list_name="mine", threads=1)
    with pytest.raises(UsageError, match="choose max, entropy, mse, or percentile"):
        calibrate(model, [], method="minmax")
    for percentile in (0.0, 100.1, -1.0, float("nan")):
        with pytest.raises(UsageError, match="percentile in"):
            calibrate(model, [], percentile=percentile)
    for smoothing in (-0.1, 1.1, float("nan")):
        with pytest.raises(UsageError, match="choose 0"):
            calibrate(model, [], smoothing=smoothing)


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


def signed(content: dict[str, Any]) -> str:
    """As a program would write it that knows the digest."""
    content = {key: value for key, value in content.items() if key != "sha256"}
    digest = sha256_bytes(json.dumps(content, sort_keys=True).encode())
    return json.dumps(content | {"sha256": digest})


@pytest.fixture
def cache(made: Calibration, tmp_path: Path) -> Path:
    save_cache(tmp_path / "ranges.json", made)
    return tmp_path / "ranges.json"


def refused(path: Path, text: str, made: Calibration, words: str) -> None:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ArtifactError) as caught:
        load_cache(path, made.onnx_digest)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert f"svtool calibrate MODEL --data LIST -o {path}" in str(caught.value)


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_a_cut_off_cache_is_refused(made: Calibration, cache: Path, keep: float) -> None:
    whole = cache.read_text(encoding="utf-8")
    refused(cache, whole[: int(keep * len(whole))], made, "is truncated or damaged")


@pytest.mark.parametrize(
    "text", ["[]", "3", "{}", '{"schema": "svtool.calibration/9"}', '{"schema": "else/1"}']
)
def test_other_json_is_refused(made: Calibration, cache: Path, text: str) -> None:
    refused(cache, text, made, "has format")


@pytest.mark.parametrize(
    "edit",
    [
        lambda raw: raw["amax"].update({next(iter(raw["amax"])): 1.5}),
        lambda raw: raw["amax"].pop(next(iter(raw["amax"]))),
        lambda raw: raw["absmax"].clear(),
        lambda raw: raw.update(onnx_digest="0" * 64),
        lambda raw: raw.update(tool="9.9.9"),
        lambda raw: raw.update(surprise=1),
        lambda raw: raw.update(sha256=None),
        lambda raw: raw.pop("sha256"),
        lambda raw: raw.pop("used"),
    ],
)
def test_an_edited_cache_is_refused(
    made: Calibration, cache: Path, edit: Callable[[dict[str, Any]], None]
) -> None:
    raw = json.loads(cache.read_text(encoding="utf-8"))
    edit(raw)
    refused(cache, json.dumps(raw), made, "was changed after svtool wrote it")
    assert json.loads(cache.read_text(encoding="utf-8")) == raw


def test_the_layout_of_the_file_may_change(made: Calibration, cache: Path) -> None:
    raw = json.loads(cache.read_text(encoding="utf-8"))
    cache.write_text(json.dumps(dict(reversed(raw.items()))), encoding="utf-8")
    assert load_cache(cache, made.onnx_digest) == made


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0, 0.0, "5", None, True])
def test_ranges_that_are_none_are_refused(made: Calibration, cache: Path, bad: object) -> None:
    raw = json.loads(cache.read_text(encoding="utf-8"))
    name = next(iter(raw["amax"]))
    raw["amax"][name] = bad
    refused(cache, signed(raw), made, f"the amax of {name!r} is {bad!r}")


@pytest.mark.parametrize(
    "edit", [lambda raw: raw.pop("amax"), lambda raw: raw.update(surprise=1, exponents={})]
)
def test_foreign_fields_are_refused(
    made: Calibration, cache: Path, edit: Callable[[dict[str, Any]], None]
) -> None:
    raw = json.loads(cache.read_text(encoding="utf-8"))
    edit(raw)
    refused(cache, signed(raw), made, "is damaged (")


def test_a_missing_cache_is_refused(cache: Path, made: Calibration) -> None:
    cache.unlink()
    with pytest.raises(ArtifactError, match="does not exist"):
        load_cache(cache, made.onnx_digest)


def test_a_range_that_is_missing_names_the_file(model: Path, made: Calibration, cache: Path) -> None:
    graph = graphs.load_model(model)
    check_complete(made, graph, cache)
    amax = dict(made.amax)
    gone = [name for name in list(amax)[:5] if amax.pop(name)]
    words = rf"{cache} lacks 5 ranges \('{gone[0]}', '{gone[1]}', '{gone[2]}' and 2 more\)"
    with pytest.raises(ArtifactError, match=words):
        check_complete(replace(made, amax=amax), graph, cache)


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
        "faint": 0.002 * rng.standard_normal(32000),
        "holes": np.concatenate([tone, np.zeros(8000)]),
        "dips": tone * (np.arange(32000) % 1600 > 300),
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
    good, loud, *others = (sample for sample in found if isinstance(sample, Sample))
    faults = {one.id: (one.clipped, one.quiet, one.zeros) for one in found if isinstance(one, Sample)}
    assert faults == {
        "good": (False, False, False),
        "loud": (True, False, False),
        "faint": (False, True, False),
        "holes": (False, False, True),
        "dips": (False, False, False),
    }
    assert len(others) == 3
    assert (good.language, good.textnorm, loud.language, loud.textnorm) == (0, 15, 4, 14)
    assert good.feats.shape == (33, 560)
    assert good.feats.dtype == np.float32


def test_a_cache_names_the_audio_that_was_used(model: Path, tmp_path: Path, tiny_assets: Assets) -> None:
    tone = 0.2 * np.sin(np.arange(16000) * 0.3)
    for name, samples in {"b": tone, "a": tone[:12000], "copy": tone, "silent": 0 * tone}.items():
        write_wave(tmp_path / f"{name}.wav", samples)
    rows = [json.dumps({"audio": f"{name}.wav"}) for name in ("b", "a", "copy", "silent")]
    (tmp_path / "list.jsonl").write_text("\n".join(rows), encoding="utf-8")
    samples = read_samples(read_utterances(tmp_path / "list.jsonl"), tiny_assets)
    made = calibrate(model, samples, threads=1, score=False)
    assert made.used == 3
    assert made.audio_digests == tuple(sorted(audio_digest(tmp_path / f"{name}.wav") for name in "ab"))
    save_cache(tmp_path / "cache.json", made)
    assert read_cache(tmp_path / "cache.json") == made


def test_a_cache_from_before_audio_was_named_still_loads(model: Path, tmp_path: Path) -> None:
    made = calibrate(model, noise(3), threads=1, score=False)
    assert "audio_digests" not in made.to_json()
    save_cache(tmp_path / "old.json", made)
    assert "audio_digests" not in json.loads((tmp_path / "old.json").read_text())
    assert read_cache(tmp_path / "old.json").digest == made.digest


def loud_channels(folder: Path) -> Path:
    """A model whose norms make two channels far louder than the rest, as trained ones do."""
    proto = small_graph.make()
    for weight in proto.graph.initializer:
        if weight.name.endswith(("norm1.weight", "norm2.weight")):
            gains = numpy_helper.to_array(weight).copy()
            gains[:2] *= 40
            weight.CopyFrom(numpy_helper.from_array(gains, weight.name))
    onnx.save(proto, folder / "model.onnx")
    return folder / "model.onnx"


def test_smoothed_ranges_are_those_of_the_smoothed_graph(tmp_path: Path) -> None:
    path = loud_channels(tmp_path)
    samples = list(noise(12))
    plain = calibrate(path, samples, method="max", threads=1)
    smoothed = calibrate(path, samples, method="max", smoothing=0.5, threads=1)
    assert smoothed.onnx_digest == plain.onnx_digest
    assert smoothed.digest != plain.digest
    folded = smooth.smooth(graphs.load_model(path), smoothed.exponents)
    graphs.save_model(folded, tmp_path / "folded.onnx")
    direct = calibrate(tmp_path / "folded.onnx", samples, method="max", threads=1, score=False)
    assert dict(smoothed.amax) == dict(direct.amax)
    assert dict(smoothed.absmax) == dict(direct.absmax)
    assert smoothed.sqnr["db"] > plain.sqnr["db"] + 3  # what it is for
    save_cache(tmp_path / "cache.json", smoothed)
    assert load_cache(tmp_path / "cache.json", plain.onnx_digest, smoothing=0.5) == smoothed
    assert len((tmp_path / "cache.json").read_text(encoding="utf-8").splitlines()) < 200
    with pytest.raises(ArtifactError, match=r"another smoothing \(0\.5, here 0\.0\)"):
        load_cache(tmp_path / "cache.json", plain.onnx_digest, smoothing=0.0)


def test_smoothing_must_be_able_to_read_twice(model: Path) -> None:
    with pytest.raises(ValueError, match="reads the samples twice"):
        calibrate(model, noise(3), smoothing=0.5, threads=1)


def test_skipped_utterances_are_told_once_when_smoothing(model: Path) -> None:
    notes = Notes()
    samples = [*noise(2), Skipped("s", "silent")]
    made = calibrate(model, samples, smoothing=0.5, threads=1, score=False, progress=notes)
    assert len([line for line in notes.seen if line.startswith("skipped 's': silent")]) == 1
    assert (made.used, made.skipped) == (2, {"silent": 1})


@pytest.mark.parametrize("percentile", [90.0, 99.0])
def test_ranges_that_clip_too_much_are_told(model: Path, percentile: float) -> None:
    made = calibrate(model, noise(8), percentile=percentile, threads=1)
    assert made.lost_db is not None
    assert made.lost_db > 3
    assert made.bad
    assert any("dB worse than with max ranges" in one for one in made.warnings)


def test_max_ranges_are_their_own_reference(made: Calibration) -> None:
    assert made.sqnr["db"] == made.sqnr["max_db"]
    assert made.lost_db == 0
    assert made.sqnr["utterances"] == 16
    assert set(made.sqnr["groups"]) == {"linear_q_k_v", "linear_out", "w_1", "w_2"}
    assert min(made.sqnr["groups"].values()) > made.sqnr["db"]


def test_foreign_scales_replace_the_measured_ones(model: Path, made: Calibration) -> None:
    scales = {name: 0.05 * value for name, value in made.amax.items()}
    found = calibrate(model, noise(8), scales=scales, threads=1)
    assert dict(found.amax) == scales
    assert (found.method, found.percentile) == ("imported", None)
    assert all(found.absmax[name] > 0 for name in made.absmax)
    assert found.lost_db is not None
    assert found.lost_db > 3
    (bad,) = (one for one in found.warnings if "BAD" in one)
    assert "without --from-trt-cache" in bad
    assert "--percentile" not in bad
    assert "--method" not in bad


def test_foreign_scales_alone_leave_fp16_unmeasured(model: Path, made: Calibration, tmp_path: Path) -> None:
    found = import_scales(model, made.amax, frontend={"dither": 0})
    assert (found.used, dict(found.absmax), dict(found.sqnr), found.lost_db) == (0, {}, {}, None)
    assert "residual stream stays float32" in found.warnings[0]
    save_cache(tmp_path / "cache.json", found)
    assert load_cache(tmp_path / "cache.json", made.onnx_digest) == found


def test_foreign_scales_must_be_of_this_graph(model: Path, made: Calibration) -> None:
    graph = graphs.load_model(model)
    extra = {**dict(reversed(made.amax.items())), "images": 1.0, "conv1": 2.0}
    kept, left_out = matched_scales(graph, extra, Path("foreign.cache"))
    assert (list(kept.items()), left_out) == (list(made.amax.items()), 2)
    head = next(layer.source for layer in graphs.linears(graph) if layer.head)
    assert matched_scales(graph, {k: v for k, v in extra.items() if k != head}, Path("foreign.cache"))[1] == 2
    few = dict(list(made.amax.items())[:8])
    with pytest.raises(
        ArtifactError, match=r"foreign\.cache lacks 4 scales \('.*', '.*', '.*' and 1 more\) of this model"
    ):
        matched_scales(graph, few, Path("foreign.cache"))


@pytest.mark.case("Q15")
def test_only_linear_inputs_get_ranges(model: Path, made: Calibration) -> None:
    """Nothing of the mask, the lengths or the position encoding, whatever its size: not even zero-sized tensors."""
    proto = onnx.load(model)
    produced = {name for node in proto.graph.node for name in node.output}
    sources = {layer.source for layer in graphs.linears(graphs.load_model(model))}
    assert set(made.amax) == sources
    for name in ("mask", "valid", "inside", "position_f", "scores_mask", "queries", "waves"):
        assert name in produced
        assert name not in made.amax
        assert name not in made.absmax
