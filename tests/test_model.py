"""The network against funasr's own logits (tests/golden) on a small random SenseVoice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from svtool.model import ModelConfig, SenseVoice

GOLDEN = Path(__file__).parent / "golden"
LOGITS_TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def description() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((GOLDEN / "model.json").read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def outputs() -> dict[str, npt.NDArray[Any]]:
    with np.load(GOLDEN / "model_outputs.npz") as archive:
        return dict(archive)


@pytest.fixture(scope="module")
def model(description: dict[str, Any]) -> SenseVoice:
    sizes = ("output_size", "attention_heads", "linear_units", "num_blocks", "tp_blocks", "kernel_size")
    encoder = description["encoder_conf"]
    model = SenseVoice(
        ModelConfig(vocab_size=description["vocab_size"], **{name: encoder[name] for name in sizes})
    )
    with np.load(GOLDEN / "model_weights.npz") as archive:
        state = {name: torch.from_numpy(archive[name].astype(np.float32)) for name in archive.files}
    model.load_state_dict(state, strict=True)
    return model.eval()


@pytest.fixture(scope="module")
def features(description: dict[str, Any]) -> list[npt.NDArray[np.float32]]:
    """The same draws as tools/golden/make_golden.py, on a grid of 1/64."""
    seed = description["input_seed"]
    return [
        (
            np.round(np.random.RandomState(seed + index).standard_normal((item["frames"], 560)) * 64) / 64
        ).astype(np.float32)
        for index, item in enumerate(description["items"])
    ]


def run(
    model: SenseVoice,
    features: list[npt.NDArray[np.float32]],
    outputs: dict[str, npt.NDArray[Any]],
    chosen: list[int],
    padding: float = 0.0,
) -> list[npt.NDArray[np.float32]]:
    """Logits of the valid rows of the `chosen` items, run as one batch padded with `padding`."""
    lengths = torch.from_numpy(outputs["lengths"][chosen])
    speech = torch.full((len(chosen), int(lengths.max()), 560), padding)
    for row, index in enumerate(chosen):
        speech[row, : lengths[row]] = torch.from_numpy(features[index])
    with torch.no_grad():
        logits, out_lengths = model(
            speech,
            lengths,
            torch.from_numpy(outputs["language"][chosen]),
            torch.from_numpy(outputs["textnorm"][chosen]),
        )
    assert torch.equal(out_lengths, lengths + 4)
    assert torch.isfinite(logits).all()
    return [rows[:length].numpy() for rows, length in zip(logits, out_lengths, strict=True)]


def assert_equal(ours: npt.NDArray[np.float32], reference: npt.NDArray[np.float32]) -> None:
    assert ours.shape == reference.shape
    assert np.abs(ours - reference).max() <= LOGITS_TOLERANCE
    np.testing.assert_array_equal(ours.argmax(-1), reference.argmax(-1))


def test_a_ragged_batch_equals_funasr(
    model: SenseVoice, features: list[npt.NDArray[np.float32]], outputs: dict[str, npt.NDArray[Any]]
) -> None:
    everything = list(range(len(features)))
    for index, ours in enumerate(run(model, features, outputs, everything)):
        assert_equal(ours, outputs[f"batch_{index}"])


def test_each_item_alone_equals_funasr(
    model: SenseVoice, features: list[npt.NDArray[np.float32]], outputs: dict[str, npt.NDArray[Any]]
) -> None:
    for index in range(len(features)):
        (ours,) = run(model, features, outputs, [index])
        assert_equal(ours, outputs[f"alone_{index}"])


@pytest.mark.case("R2")
def test_padding_with_garbage_changes_nothing(
    model: SenseVoice, features: list[npt.NDArray[np.float32]], outputs: dict[str, npt.NDArray[Any]]
) -> None:
    everything = list(range(len(features)))
    for index, ours in enumerate(run(model, features, outputs, everything, padding=50.0)):
        assert_equal(ours, outputs[f"batch_{index}"])
