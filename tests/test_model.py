"""The network against funasr's own logits (tests/golden), and strict loading, on small random SenseVoices."""

from __future__ import annotations

import io
import json
import os
import shutil
import zipfile
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


def refused(folder: Path, state: Any) -> str:
    """What is said of `state` as a checkpoint: one sentence that begins with the file."""
    torch.save(state, folder / CHECKPOINT_NAME)
    with pytest.raises(ArtifactError) as caught:
        load(folder)
    message = str(caught.value)
    assert message.startswith(str(folder / CHECKPOINT_NAME))
    assert "\n" not in message
    assert len(message.replace(str(folder), "")) < 600
    return message


@pytest.mark.case("E11")
def test_another_model_is_told_as_such_in_one_sentence(folder: Path) -> None:
    said = refused(folder, {f"layer.{index}.weight": torch.zeros(1) for index in range(500)})
    assert "looks like another model" in said
    assert "no encoder.encoders0.0." in said
    assert "layer.0.weight, layer.1.weight, layer.10.weight and 497 more" in said
    assert "svtool export iic/SenseVoiceSmall" in said


def test_a_few_names_of_each_kind_are_enough(folder: Path) -> None:
    state = stored(folder)
    for name in [one for one in state if one.startswith("encoder.tp_encoders")]:
        state["old." + name] = state.pop(name)
    said = refused(folder, state)
    assert said.count("encoder.tp_encoders.0.") == 6
    assert said.count("and 10 more") == 2


def test_a_model_inside_another_is_recognised(folder: Path) -> None:
    inner = {"student.model." + name: tensor for name, tensor in stored(folder).items()}
    said = refused(folder, inner | {"teacher.embed.weight": torch.zeros(3)})
    assert "inside another (names begin with 'student.model.')" in said


def test_weights_of_a_quantized_model_are_refused(folder: Path) -> None:
    said = refused(folder, {name: tensor.to(torch.int8) for name, tensor in stored(folder).items()})
    assert "no floating-point weights" in said
    assert "before quantization" in said


@pytest.mark.case("E11")
def test_a_vocabulary_of_another_size_names_both_files(folder: Path) -> None:
    state = stored(folder)
    for name in ("ctc.ctc_lo.weight", "ctc.ctc_lo.bias"):
        state[name] = state[name][:-1].clone()
    said = refused(folder, state)
    assert "trained with 399 tokens, chn_jpn_yue_eng_ko_spectok.bpe.model beside it has 400" in said
    assert "same release" in said


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(folder: Path, number: float) -> None:
    state = stored(folder)
    state["encoder.tp_norm.weight"][3] = number
    torch.save(state, folder / CHECKPOINT_NAME)
    with pytest.raises(ArtifactError, match=r"in 1 tensor: encoder\.tp_norm\.weight; take a"):
        load(folder)


class Dangerous:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch ran-code",)


def test_code_in_a_checkpoint_is_not_run(folder: Path, in_folder: Path) -> None:
    torch.save({"state_dict": stored(folder), "hook": Dangerous()}, folder / CHECKPOINT_NAME)
    with pytest.raises(ArtifactError, match="objects other than tensors"):
        load(folder)
    assert not (in_folder / "ran-code").exists()


def told(folder: Path) -> str:
    """What is said of the damaged file: one sentence of our own, with a next step, whatever torch says."""
    with pytest.raises(ArtifactError) as caught:
        load(folder)
    message = str(caught.value)
    assert message.startswith(f"{folder / CHECKPOINT_NAME} ")
    assert "\n" not in message
    for words in ("PytorchStreamReader", "weights_only", "EOFError", "enforce fail", ". "):
        assert words not in message.replace(str(folder), "")
    return message


@pytest.mark.parametrize(
    ("kept", "said"),
    [(0.0, "is empty: copy"), (0.001, "is cut off after"), (0.5, "is cut off after"), (0.999, "is cut off")],
)
def test_a_truncated_file_is_told_as_such(folder: Path, kept: float, said: str) -> None:
    path = folder / CHECKPOINT_NAME
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])
    assert said in told(folder)


@pytest.mark.parametrize("kept", [0.02, 0.5, 0.99])
def test_a_truncated_file_of_old_pytorch_is_refused(folder: Path, kept: float) -> None:
    path = folder / CHECKPOINT_NAME
    torch.save(stored(folder), path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])
    assert "damaged or cut off" in told(folder)


@pytest.mark.parametrize("place", [0.3, 0.5, 0.8, 0.985, 0.995])
def test_damage_inside_the_file_is_noticed(folder: Path, place: float) -> None:
    """Torch maps the file and checks no sums: a hole in the weights would be exported."""
    path = folder / CHECKPOINT_NAME
    content = bytearray(path.read_bytes())
    at = int(len(content) * place)
    content[at : at + 64] = bytes(one ^ 0x55 for one in content[at : at + 64])
    path.write_bytes(content)
    assert "damaged" in told(folder)


def zipped(**files: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "/").replace("_", "."), content)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<html>404</html>", "is an HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b'{"message": "not found"}', "is a text file"),
        (b"hello", "is a text file ('hello')"),
        (bytes(999), "nothing but zeros"),
        (bytes(range(1, 200)), "no PyTorch checkpoint"),
        (zipped(readme_txt=b"x"), "zip archive without a PyTorch checkpoint"),
        (zipped(release__model_pt=b"x"), "zip archive around release/model.pt: unpack"),
        (zipped(release__data_pkl=b"x"), "damaged"),
        (zipped(release__constants_pkl=b"x", release__data_pkl=b"x"), "TorchScript"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_called_what_it_is(folder: Path, content: bytes, said: str) -> None:
    (folder / CHECKPOINT_NAME).write_bytes(content)
    assert said in told(folder)


@pytest.mark.parametrize(
    ("value", "held"),
    [
        ([1, 2], "one list"),
        (torch.zeros(3), "one Tensor"),
        ({}, "an empty dict"),
        ({"state_dict": {"a": 1}}, "a dict of a"),
        ({"epoch": 3, "net": {"a": torch.zeros(1)}}, "a dict of epoch, net"),
    ],
)
def test_something_other_than_a_state_dict_is_refused(folder: Path, value: Any, held: str) -> None:
    said = refused(folder, value)
    assert f"holds {held}, not a state dict of tensors: save the model's state_dict() alone" in said


def test_a_missing_checkpoint_is_named(folder: Path) -> None:
    (folder / CHECKPOINT_NAME).unlink()
    with pytest.raises(ArtifactError, match=r"has no model\.pt: put the checkpoint there"):
        load(folder)
    (folder / CHECKPOINT_NAME).mkdir()
    with pytest.raises(ArtifactError, match=r"model\.pt is a folder"):
        load(folder)
    (folder / "model.onnx").touch()
    (folder / CHECKPOINT_NAME).rmdir()
    with pytest.raises(ArtifactError, match=r"exported already; build an engine with  svtool build-trt"):
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
