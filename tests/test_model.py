"""The network against funasr's own logits (tests/golden), and strict loading, on small random SenseVoices."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import yaml

from checkpoints import write_checkpoint
from svtool.assets import CHECKPOINT_NAME, CONFIG_NAME, read_assets
from svtool.errors import ArtifactError
from svtool.model import ModelConfig, SenseVoice, load_checkpoint

State = dict[str, torch.Tensor]

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


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(checkpoint, tmp_path / "changed"))


def load(folder: Path) -> SenseVoice:
    return load_checkpoint(read_assets(folder, name="random"))


def stored(folder: Path) -> State:
    state: State = torch.load(folder / CHECKPOINT_NAME, weights_only=True)
    return state


@pytest.mark.parametrize("key", [None, "state_dict", "model_state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_wrapped_and_prefixed_checkpoints_load(folder: Path, key: str | None, prefix: str) -> None:
    state = stored(folder)
    renamed = {prefix + name: tensor for name, tensor in state.items()}
    torch.save({key: renamed, "epoch": 7} if key else renamed, folder / CHECKPOINT_NAME)
    loaded = load(folder).state_dict()
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[name], state[name]) for name in state)


def test_half_precision_is_loaded_as_float32(folder: Path) -> None:
    state = stored(folder)
    torch.save({name: tensor.half() for name, tensor in state.items()}, folder / CHECKPOINT_NAME)
    for name, tensor in load(folder).state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, state[name].half().float())


def test_the_file_format_of_old_pytorch_loads(folder: Path) -> None:
    torch.save(stored(folder), folder / CHECKPOINT_NAME, _use_new_zipfile_serialization=False)
    assert len(load(folder).state_dict()) == len(stored(folder))


def test_the_loaded_model_infers(checkpoint: Path) -> None:
    model = load(checkpoint)
    assert not model.training
    assert all(tensor.device.type == "cpu" for tensor in model.state_dict().values())


def test_every_missing_extra_and_misshaped_tensor_is_named(folder: Path) -> None:
    state = stored(folder)
    del state["encoder.after_norm.bias"]
    del state["encoder.encoders.0.norm1.weight"]
    state["decoder.embed.weight"] = torch.zeros(3)
    rows, width = state["ctc.ctc_lo.weight"].shape
    state["ctc.ctc_lo.weight"] = torch.zeros(rows + 1, width)
    torch.save(state, folder / CHECKPOINT_NAME)
    with pytest.raises(ArtifactError) as caught:
        load(folder)
    message = str(caught.value)
    for part in (
        str(folder / CHECKPOINT_NAME),
        "2 missing: encoder.after_norm.bias, encoder.encoders.0.norm1.weight",
        "1 not expected: decoder.embed.weight",
        f"1 wrong shape: ctc.ctc_lo.weight [{rows + 1}, {width}] (expected [{rows}, {width}])",
    ):
        assert part in message


def test_a_foreign_checkpoint_does_not_flood_the_terminal(folder: Path) -> None:
    torch.save({f"layer.{index}": torch.zeros(1) for index in range(500)}, folder / CHECKPOINT_NAME)
    with pytest.raises(ArtifactError, match="and 480 more") as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 2500


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(folder: Path, number: float) -> None:
    state = stored(folder)
    state["encoder.tp_norm.weight"][3] = number
    torch.save(state, folder / CHECKPOINT_NAME)
    with pytest.raises(ArtifactError, match=r"not finite in 1 tensors: encoder\.tp_norm\.weight"):
        load(folder)


class Dangerous:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch ran-code",)


def test_code_in_a_checkpoint_is_not_run(folder: Path, in_folder: Path) -> None:
    torch.save({"state_dict": stored(folder), "hook": Dangerous()}, folder / CHECKPOINT_NAME)
    with pytest.raises(ArtifactError, match="objects other than tensors"):
        load(folder)
    assert not (in_folder / "ran-code").exists()


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.5, 0.999])
def test_a_truncated_file_is_refused(folder: Path, kept: float) -> None:
    path = folder / CHECKPOINT_NAME
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])
    with pytest.raises(ArtifactError, match=r"model\.pt"):
        load(folder)


@pytest.mark.parametrize(
    "content", [b"<html>404</html>", b"version https://git-lfs.github.com/spec/v1\n", bytes(999)]
)
def test_a_file_that_is_no_checkpoint_is_refused(folder: Path, content: bytes) -> None:
    (folder / CHECKPOINT_NAME).write_bytes(content)
    with pytest.raises(ArtifactError, match=r"model\.pt is no"):
        load(folder)


@pytest.mark.parametrize("value", [[1, 2], torch.zeros(3), {"state_dict": {"a": 1}}, {"a": "b"}])
def test_something_other_than_a_state_dict_is_refused(folder: Path, value: Any) -> None:
    torch.save(value, folder / CHECKPOINT_NAME)
    with pytest.raises(ArtifactError, match="not a state dict of tensors"):
        load(folder)


def test_a_missing_checkpoint_is_named(folder: Path) -> None:
    (folder / CHECKPOINT_NAME).unlink()
    with pytest.raises(ArtifactError, match=r"has no model\.pt"):
        load(folder)


@pytest.mark.case("E11")
@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("normalize_before", False, "normalize_before is False, expected True"),
        ("selfattention_layer_type", "selfattn", "expected 'sanm'"),
        ("input_layer", "conv2d", "expected 'pe'"),
        ("pos_enc_class", "RelPositionalEncoding", "expected 'SinusoidalPositionEncoder'"),
        ("output_size", "wide", "no number"),
        ("linear_units", None, "no number"),
        ("attention_heads", 5, "attention_heads 5"),
        ("attention_heads", 0, "attention_heads 0"),
        ("num_blocks", 4, "missing: encoder.encoders.1."),
        ("kernel_size", 7, "wrong shape"),
    ],
)
def test_an_encoder_that_is_not_this_network_is_refused(
    folder: Path, key: str, value: Any, said: str
) -> None:
    path = folder / CONFIG_NAME
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    config["encoder_conf"][key] = value
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    with pytest.raises(ArtifactError) as caught:
        load(folder)
    assert said in str(caught.value)
    assert "config.yaml" in str(caught.value)


@pytest.mark.case("E11")
def test_a_size_left_out_is_named(folder: Path) -> None:
    path = folder / CONFIG_NAME
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    del config["encoder_conf"]["tp_blocks"]
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    with pytest.raises(ArtifactError, match="has no 'tp_blocks' entry"):
        load(folder)
