"""`svtool verify`: the check over two ONNX Runtime backends, sound and broken; the whole command over the doubles."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import trt_double
from svtool import flavor, manifest, precision, verify
from svtool.assets import Assets
from svtool.backends import Backend, Batch, Output, load_backend, trt
from svtool.cli import app
from svtool.errors import ArtifactError
from svtool.frontend import Frontend
from svtool.graph import load_model, save_model
from svtool.verify import BARS, check, make_cases
from trt_double import FakeDevice, FakeTensorRT

PROFILES = ((4, 30), (2, 90))
CORNERS = ("one frame", "ragged", "maximum", "90 % padding", "silence", "square wave")
runner = CliRunner()


@pytest.fixture(scope="module")
def folder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of the double with its twin, manifests and the assets of an export."""
    made = tmp_path_factory.mktemp("verify")
    for path in tiny_model.parent.iterdir():
        if path.is_file() and path.suffix not in (".onnx", ".plan") and not path.name.endswith(".json"):
            shutil.copy(path, made)
    shutil.copy(tiny_model.parent / "tokens.json", made)
    twin = precision.to_fp16(load_model(tiny_model))
    save_model(twin, made / "fp16.onnx")
    tags = load_backend(tiny_model, threads=1).tag_ids
    save_model(precision.add_greedy_head(twin, tags), made / "greedy.onnx")
    (made / "fp16.plan").write_bytes(trt_double.PLAN)
    facts = {
        "kind": "engine",
        "runtime": "tensorrt_rtx",
        "precision": "fp16",
        "model": "model.onnx",
        "twin": "fp16.onnx",
        "twin_sha256": manifest.sha256_file(made / "fp16.onnx"),
        "tag_ids": list(tags),
        "compute_capability": "portable",
        "built_with": {"tensorrt_rtx": "9.9.9"},
        "verified_on_gpu": False,
    }
    manifest.write_manifest(made / "fp16.plan", facts)
    return made


@pytest.fixture(scope="module")
def twin(folder: Path) -> Backend:
    return load_backend(folder / "fp16.onnx", threads=1)


@pytest.fixture(scope="module")
def cases(tiny_assets: Assets) -> list[verify.Case]:
    return list(make_cases(PROFILES, Frontend(tiny_assets.cmvn)))


def test_every_corner_of_every_profile_is_a_case(cases: list[verify.Case]) -> None:
    assert [(one.profile, one.name) for one in cases] == [(p, name) for p in PROFILES for name in CORNERS]
    by_name = {one.name: one.batch for one in cases if one.profile == (4, 30)}
    assert by_name["one frame"].feats.shape[:2] == (1, 1)
    assert by_name["maximum"].feats.shape[:2] == by_name["ragged"].feats.shape[:2] == (4, 30)
    assert by_name["ragged"].feat_lens.tolist() == [30, 23, 15, 8]
    assert by_name["90 % padding"].feat_lens.tolist() == [3] * 4
    assert by_name["90 % padding"].feats.shape[1] == 30
    for name in ("silence", "square wave"):
        assert 28 <= by_name[name].feat_lens[0] <= 30
    assert np.isfinite(by_name["silence"].feats).all()
    for one in cases:
        assert one.batch.feats.shape[0] <= one.profile[0]
        assert one.batch.feats.shape[1] <= one.profile[1]


def test_a_profile_of_one_frame_has_all_its_cases(tiny_assets: Assets) -> None:
    shapes = [one.batch.feats.shape[:2] for one in make_cases(((1, 1),), Frontend(tiny_assets.cmvn))]
    assert shapes == [(1, 1)] * 6


def test_the_same_function_in_other_arithmetic_passes(
    tiny_model: Path, twin: Backend, cases: list[verify.Case]
) -> None:
    results = check(load_backend(tiny_model, threads=1), twin, cases, BARS["fp16"])
    assert [one.failure for one in results] == [None] * len(cases)
    assert min(one.sqnr_db or 99 for one in results) > 40


def test_a_greedy_engine_is_compared_by_its_tags(
    folder: Path, twin: Backend, cases: list[verify.Case]
) -> None:
    results = check(load_backend(folder / "greedy.onnx", threads=1), twin, cases, BARS["fp16"])
    assert [(one.failure, one.argmax_agreement) for one in results] == [(None, 100.0)] * len(cases)


class Broken:
    """A backend that changes what a sound one answers."""

    def __init__(self, real: Backend, fault: str) -> None:
        self._real, self._fault = real, fault
        self.limits, self.runtime, self.provider = real.limits, real.runtime, real.provider
        self.tag_ids = real.tag_ids

    def infer(self, batch: Batch) -> Output:
        output = replace(self._real.infer(batch), logits=None)
        ids, logprobs, tags, lens = (
            one.copy()
            for one in (output.token_ids, output.token_logprobs, output.tag_logits, output.logit_lens)
        )
        if self._fault == "raises":
            raise RuntimeError("the stream broke")
        if self._fault == "lengths":
            lens[:] = ids.shape[1] + 1
        if self._fault == "nan":
            logprobs[-1, lens[-1] - 1] = np.nan
        if self._fault == "inf tags":
            tags[0, 0, 0] = np.inf
        if self._fault == "scale":
            tags *= 100
        if self._fault == "tokens":
            ids[:, 4:] = (ids[:, 4:] + 1) % 5
        if self._fault == "temperature":
            logprobs -= 1
        if self._fault == "cut":
            ids, logprobs = ids[:, :-1], logprobs[:, :-1]
        return Output(ids, logprobs, tags, lens)

    def close(self) -> None: ...


@pytest.mark.case("B7", "B12")
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raises", "the stream broke"),
        ("lengths", "returned the lengths"),
        ("nan", "not finite for item"),
        ("inf tags", "not finite for item 0"),
        ("scale", r"-\d+\.\d dB against its twin, at least 30 wanted"),
        ("tokens", r"% of frames have the twin's token, at least 98 wanted"),
        ("temperature", "log-probabilities 1.00 nats"),
        ("cut", "returned ids of shape"),
    ],
)
def test_every_fault_fails_every_case(
    twin: Backend, cases: list[verify.Case], fault: str, message: str
) -> None:
    results = check(Broken(twin, fault), twin, cases, BARS["fp16"])
    for one in results:
        assert one.failure is not None
        assert re.search(message, one.failure), one.failure


@pytest.mark.case("B12")
def test_a_fault_at_one_shape_fails_that_case_alone(twin: Backend, cases: list[verify.Case]) -> None:
    class Large(Broken):
        def infer(self, batch: Batch) -> Output:
            return super().infer(batch) if batch.feats.shape[:2] == (2, 90) else twin.infer(batch)

    results = check(Large(twin, "nan"), twin, cases, BARS["fp16"])
    failed = [(one.profile, one.name) for one in results if one.failure]
    assert failed == [((2, 90), name) for name in ("ragged", "maximum", "90 % padding")]


# --- the command --------------------------------------------------------------------------------------------------


@pytest.fixture
def library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTensorRT:
    """A machine with a GPU, as far as svtool can tell."""
    device = FakeDevice()
    made = FakeTensorRT(folder / "greedy.onnx", [((1, 1), most, most) for most in PROFILES], device)
    monkeypatch.setattr(trt, "open_device", lambda: device)
    for module in (trt, verify):
        monkeypatch.setattr(module, "has_cuda_device", lambda: True)
        monkeypatch.setattr(module, "compute_capability", lambda: "8.9")
    monkeypatch.setattr(verify, "gpu_name", lambda: "NVIDIA Double")
    for name, answer in (("is_installed", True), ("import_flavor", made)):
        monkeypatch.setattr(trt, name, lambda _, answer=answer: answer)
    return made


def test_a_sound_plan_is_marked_verified(folder: Path, library: FakeTensorRT) -> None:
    before = manifest.read_manifest(folder / "fp16.plan")
    result = runner.invoke(app, ["verify", str(folder / "fp16.plan"), "--json", "-q", "--threads", "1"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["schema"], report["passed"]) == ("svtool.verify/1", True)
    assert [(one["name"], one["failure"]) for one in report["cases"]] == [
        (name, None) for name in CORNERS
    ] * 2
    after = manifest.read_manifest(folder / "fp16.plan")
    assert after.pop("verified_on_gpu") is True
    found = after.pop("verification")
    assert {**after, "verified_on_gpu": False} == {
        name: value for name, value in before.items() if name != "verification"
    }
    assert (found["passed"], found["gpu"], found["compute_capability"]) == (True, "NVIDIA Double", "8.9")
    assert (found["engine"], found["cuda_graphs"]) == ("TensorRT-RTX 9.9.9", False)
    assert found["cases"] == report["cases"]
    assert library.device.closed


def test_a_broken_plan_fails_and_loses_its_mark(
    folder: Path, library: FakeTensorRT, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deserialize(self: Any, data: bytes) -> Any:
        library.spoil = lambda results: results["tag_logits"].__imul__(100)
        return real(self, data)

    real = trt_double.Runtime.deserialize_cuda_engine
    monkeypatch.setattr(trt_double.Runtime, "deserialize_cuda_engine", deserialize)
    described = manifest.read_manifest(folder / "fp16.plan") | {"verified_on_gpu": True}
    manifest.write_json(manifest.manifest_path(folder / "fp16.plan"), described)
    result = runner.invoke(app, ["verify", str(folder / "fp16.plan"), "-q", "--threads", "1"])
    assert result.exit_code == 1
    assert "FAILED on NVIDIA Double" in result.stdout
    after = manifest.read_manifest(folder / "fp16.plan")
    assert (after["verified_on_gpu"], after["verification"]["passed"]) == (False, False)


def test_cuda_graphs_are_replayed_before_they_are_trusted(folder: Path, library: FakeTensorRT) -> None:
    report = verify.verify(folder / "fp16.plan", cuda_graphs=True, threads=1)
    assert report.passed
    assert library.engine is not None
    assert library.engine.runtime_configs[-1].cuda_graph_strategy.name == "WHOLE_GRAPH_CAPTURE"
    assert library.engine.contexts[0].enqueued == 3 * len(report.results)
    assert manifest.read_manifest(folder / "fp16.plan")["verification"]["cuda_graphs"] is True


@pytest.mark.case("B8")
def test_another_twin_is_refused_and_the_manifest_stays(
    folder: Path, library: FakeTensorRT, tmp_path: Path
) -> None:
    for path in folder.iterdir():
        shutil.copy(path, tmp_path)
    before = manifest.manifest_path(tmp_path / "fp16.plan").read_bytes()
    shutil.copy(folder / "greedy.onnx", tmp_path / "fp16.onnx")
    with pytest.raises(ArtifactError, match=r"fp16\.onnx is not the file its manifest describes"):
        verify.verify(tmp_path / "fp16.plan")
    (tmp_path / "fp16.onnx").unlink()
    with pytest.raises(ArtifactError, match=r"fp16\.onnx does not exist: copy it"):
        verify.verify(tmp_path / "fp16.plan")
    assert manifest.manifest_path(tmp_path / "fp16.plan").read_bytes() == before


@pytest.mark.case("R5")
def test_without_a_gpu_one_sentence_and_an_untouched_manifest(folder: Path) -> None:
    if flavor.has_cuda_device():
        pytest.skip("this machine has a GPU")
    before = manifest.manifest_path(folder / "fp16.plan").read_bytes()
    result = runner.invoke(app, ["verify", str(folder / "fp16.plan"), "--json"])
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = [one for one in result.stderr.splitlines() if one.strip()]
    assert "can only be verified on an NVIDIA GPU" in line
    assert manifest.manifest_path(folder / "fp16.plan").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "says"), [("nope.plan", "does not exist"), ("nope.onnx", "does not exist"), ("", "is a folder")]
)
def test_what_is_not_there_is_said_before_anything_else(tmp_path: Path, name: str, says: str) -> None:
    result = runner.invoke(app, ["verify", str(tmp_path / name), "--json"])
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = [one for one in result.stderr.splitlines() if one.strip()]
    assert f"{tmp_path / name} {says}" in line
    assert "has no manifest" not in line


def test_what_is_no_plan_is_refused(folder: Path) -> None:
    result = runner.invoke(app, ["verify", str(folder / "fp16.onnx")])
    assert result.exit_code == 1
    assert "is no plan" in result.stderr
