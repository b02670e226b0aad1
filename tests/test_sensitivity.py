"""SQNR of candidate graphs: what is compared, in which arithmetic, and in how much memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import small_graph
from calibration_samples import noise
from svtool import graph as graphs
from svtool import layers, quantize, sensitivity
from svtool.backends.onnxrt import open_session
from svtool.calibration import Calibration, Sample, calibrate
from svtool.errors import ArtifactError, UsageError
from svtool.ranges import feed
from svtool.sqnr import sqnr_db


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_graph.write(tmp_path_factory.mktemp("sensitivity") / "model.onnx")


@pytest.fixture(scope="module")
def made(model: Path) -> Calibration:
    return calibrate(model, noise(20), percentile=99.9, threads=1, score=False)


SAMPLES = tuple(noise(4))


def test_a_score_is_that_of_the_written_graph(model: Path, made: Calibration, tmp_path: Path) -> None:
    names = ["encoder.encoders.0.feed_forward.w_1", "encoder.encoders0.0.self_attn.linear_out"]
    graphs.save_model(
        quantize.to_int8(graphs.load_model(model), made.amax, layers=names), tmp_path / "int8.onnx"
    )
    sessions = [open_session(path, threads=1) for path in (model, tmp_path / "int8.onnx")]
    exact, rough = (
        np.concatenate([session.run(["ctc_logits"], feed(sample))[0][0] for sample in SAMPLES])
        for session in sessions
    )
    found = sensitivity.sqnr_of(model, SAMPLES, made, names, threads=1)
    assert found == pytest.approx(sqnr_db(exact, rough), abs=1e-6)
    assert 10 < found < 80


def test_groups_are_scored_one_by_one(model: Path, made: Calibration) -> None:
    groups = layers.layer_groups(graphs.load_model(model), most=6)
    found = sensitivity.group_sqnr(model, SAMPLES, made, groups, threads=1)
    assert list(found) == [group.name for group in groups]
    alone = sensitivity.sqnr_of(model, SAMPLES, made, groups[2].layers, threads=1)
    assert found[groups[2].name] == alone
    assert min(found.values()) > sensitivity.sqnr_of(model, SAMPLES, made, None, threads=1)


def test_max_ranges_are_those_of_the_same_audio(model: Path, made: Calibration) -> None:
    by_max = calibrate(model, noise(20), method="max", threads=1, score=False)
    assert sensitivity.largest_ranges(made) == dict(by_max.amax)
    assert sensitivity.sqnr_of(model, SAMPLES, made, None, use_max=True, threads=1) == sensitivity.sqnr_of(
        model, SAMPLES, by_max, None, threads=1
    )


def test_nothing_in_int8_changes_nothing(model: Path, made: Calibration) -> None:
    assert sensitivity.sqnr_of(model, SAMPLES, made, [], threads=1) == float("inf")


def test_no_candidate_stays_on_the_disk(model: Path, made: Calibration, tmp_path: Path) -> None:
    import tempfile

    before = tempfile.tempdir
    tempfile.tempdir = str(tmp_path)
    try:
        scorer = sensitivity.Scorer(model, SAMPLES, threads=1)
        scorer.sqnr(made.amax, None)
        with pytest.raises(UsageError):
            scorer.sqnr(made.amax, ["no.such.layer"])
    finally:
        tempfile.tempdir = before
    assert not list(tmp_path.iterdir())


def test_samples_are_few_and_spread() -> None:
    many = [Sample(str(index), np.zeros((10, 560), np.float32), 0, 15) for index in range(64)]
    assert [int(one.id) for one in sensitivity.choose(many)] == list(range(0, 64, 4))
    assert sensitivity.choose(sensitivity.choose(many)) == sensitivity.choose(many)
    long = [
        Sample(str(index), np.zeros((500 if index % 2 else 20, 560), np.float32), 0, 15)
        for index in range(40)
    ]
    chosen = sensitivity.choose(long)
    assert sum(len(one.feats) for one in chosen) <= sensitivity.MOST_FRAMES
    assert any(len(one.feats) == 500 for one in chosen)
    assert sensitivity.choose([long[1]._replace(feats=np.zeros((4000, 560), np.float32))])[0].id == "1"


def test_no_samples_is_an_error(model: Path) -> None:
    with pytest.raises(ArtifactError, match="no utterance is left"):
        sensitivity.Scorer(model, [], threads=1)


def test_a_bad_utterance_is_named(model: Path) -> None:
    with pytest.raises(ArtifactError, match=r"failed on the utterance 'odd' of shape \[9, 560\]"):
        sensitivity.Scorer(model, [Sample("odd", np.ones((9, 560), np.float32), 99, 15)], threads=1)
