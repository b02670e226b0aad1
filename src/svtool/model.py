"""SenseVoice Small as one nn.Module, and strict loading of the official checkpoint. Knows nothing of audio or text.

Written for export: the padding mask comes from the time axis, lengths stay integers, masked scores are finite,
the position encoding is built in float32, LayerNorm is native and no input is changed. Parameter names are the
checkpoint's own (917 tensors at full size), so loading is a comparison of names and shapes.
"""

from __future__ import annotations

import math
import pickle
import warnings
import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from svtool.assets import BPE_NAME, CONFIG_NAME, QUERIES
from svtool.errors import ArtifactError
from svtool.intake import AGAIN, begins_as_zip, stranger

if TYPE_CHECKING:
    from pathlib import Path

    from svtool.assets import Assets

QUERY_ROWS = 16  # rows of the query table; see assets.LANGUAGES and assets.TEXTNORMS for their use
_EMOTION_EVENT_ROWS = (1, 2)
# what the code below is; a config that says otherwise would load and give garbage
_FORM = {
    "input_layer": "pe",
    "pos_enc_class": "SinusoidalPositionEncoder",
    "normalize_before": True,
    "selfattention_layer_type": "sanm",
}
_MASKED_SCORE = -1e4  # large enough that exp() gives exactly 0, small enough for float16


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of one checkpoint. The defaults are SenseVoice Small's."""

    vocab_size: int = 25055
    input_size: int = 560
    output_size: int = 512
    attention_heads: int = 4
    linear_units: int = 2048
    num_blocks: int = 50  # encoders0 + encoders
    tp_blocks: int = 20
    kernel_size: int = 11
    sanm_shift: int = 0  # config.yaml spells it `sanm_shfit`

    @classmethod
    def from_assets(cls, assets: Assets) -> ModelConfig:
        """Sizes from `config.yaml` and the tokenizer. `assets` has already refused other model families."""
        encoder = assets.config["encoder_conf"]
        frontend = assets.config["frontend_conf"]
        for key, value in _FORM.items():
            if encoder.get(key, value) != value:
                raise ArtifactError(
                    f"{assets.root / 'config.yaml'} is not SenseVoice Small: encoder_conf.{key} is {encoder[key]!r}, "
                    f"expected {value!r}; svtool handles no other model family"
                )
        remedy = "take it from the release of the checkpoint"
        try:
            config = cls(
                vocab_size=len(assets.tokens.pieces),
                input_size=int(frontend["n_mels"]) * int(frontend["lfr_m"]),
                output_size=int(encoder["output_size"]),
                attention_heads=int(encoder["attention_heads"]),
                linear_units=int(encoder["linear_units"]),
                num_blocks=int(encoder["num_blocks"]),
                tp_blocks=int(encoder["tp_blocks"]),
                kernel_size=int(encoder["kernel_size"]),
                sanm_shift=int(encoder.get("sanm_shfit", 0)),
            )
        except KeyError as error:
            raise ArtifactError(
                f"{assets.root / 'config.yaml'} has no {error.args[0]!r} entry: {remedy}"
            ) from error
        except (TypeError, ValueError) as error:
            raise ArtifactError(
                f"{assets.root / 'config.yaml'} holds a size that is no number ({error}): {remedy}"
            ) from error
        smallest = min(config.output_size, config.attention_heads, config.linear_units, config.num_blocks)
        if smallest < 1 or config.output_size % config.attention_heads or config.kernel_size < 1:
            raise ArtifactError(
                f"{assets.root / 'config.yaml'} describes no network: encoder_conf has output_size "
                f"{config.output_size}, attention_heads {config.attention_heads}, linear_units {config.linear_units}, "
                f"num_blocks {config.num_blocks}, kernel_size {config.kernel_size}; {remedy}"
            )
        return config


class SelfAttention(nn.Module):
    """Multi-head attention plus a depthwise convolution over the values (the "memory" of SAN-M)."""

    def __init__(self, config: ModelConfig, input_size: int) -> None:
        super().__init__()
        width = config.output_size
        self.heads = config.attention_heads
        self.linear_q_k_v = nn.Linear(input_size, 3 * width)
        self.linear_out = nn.Linear(width, width)
        self.left = (config.kernel_size - 1) // 2 + max(config.sanm_shift, 0)
        self.right = config.kernel_size - 1 - self.left
        self.fsmn_block = nn.Conv1d(
            width,
            width,
            config.kernel_size,
            groups=width,
            bias=False,
            padding=self.left if self.left == self.right else 0,
        )

    def forward(self, x: Tensor, valid: Tensor, scores_mask: Tensor) -> Tensor:
        query, key, value = self.linear_q_k_v(x).chunk(3, dim=-1)
        attended: Tensor = self.linear_out(self._attend(query, key, value, scores_mask))
        return attended + self._memory(value, valid)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, scores_mask: Tensor) -> Tensor:
        size = query.shape[-1] // self.heads
        by_head = [
            torch.unflatten(part, -1, (self.heads, size)).transpose(1, 2) for part in (query, key, value)
        ]
        scores = (by_head[0] * size**-0.5) @ by_head[1].transpose(-2, -1) + scores_mask
        return (torch.softmax(scores, dim=-1) @ by_head[2]).transpose(1, 2).flatten(-2)

    def _memory(self, value: Tensor, valid: Tensor) -> Tensor:
        kept = value * valid
        moved = kept.transpose(1, 2)
        if self.left != self.right:
            moved = functional.pad(moved, (self.left, self.right))
        remembered: Tensor = self.fsmn_block(moved)
        return (remembered.transpose(1, 2) + kept) * valid


class FeedForward(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.w_1 = nn.Linear(config.output_size, config.linear_units)
        self.w_2 = nn.Linear(config.linear_units, config.output_size)

    def forward(self, x: Tensor) -> Tensor:
        widened: Tensor = self.w_1(x)
        narrowed: Tensor = self.w_2(functional.relu(widened))
        return narrowed


class Block(nn.Module):
    """Pre-norm encoder block. The block that changes the width (560 to 512) has no residual around attention."""

    def __init__(self, config: ModelConfig, input_size: int) -> None:
        super().__init__()
        self.residual = input_size == config.output_size
        self.norm1 = nn.LayerNorm(input_size)
        self.self_attn = SelfAttention(config, input_size)
        self.norm2 = nn.LayerNorm(config.output_size)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, valid: Tensor, scores_mask: Tensor) -> Tensor:
        attended: Tensor = self.self_attn(self.norm1(x), valid, scores_mask)
        x = x + attended if self.residual else attended
        fed: Tensor = self.feed_forward(self.norm2(x))
        return x + fed


class Encoder(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.output_size
        self.encoders0 = nn.ModuleList([Block(config, config.input_size)])
        self.encoders = nn.ModuleList([Block(config, width) for _ in range(config.num_blocks - 1)])
        self.tp_encoders = nn.ModuleList([Block(config, width) for _ in range(config.tp_blocks)])
        self.after_norm = nn.LayerNorm(width)
        self.tp_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, valid: Tensor, scores_mask: Tensor) -> Tensor:
        for block in (*self.encoders0, *self.encoders):
            x = block(x, valid, scores_mask)
        x = self.after_norm(x)
        for block in self.tp_encoders:
            x = block(x, valid, scores_mask)
        return self.tp_norm(x)  # type: ignore[no-any-return]


class Head(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.ctc_lo = nn.Linear(config.output_size, config.vocab_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.ctc_lo(x)  # type: ignore[no-any-return]


class SenseVoice(nn.Module):
    """The whole network: features and query ids in, raw CTC logits out."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.scale = math.sqrt(config.output_size)  # of the output width, although the input is wider
        self.embed = nn.Embedding(QUERY_ROWS, config.input_size)
        self.encoder = Encoder(config)
        self.ctc = Head(config)

    def forward(
        self, speech: Tensor, speech_lengths: Tensor, language: Tensor, textnorm: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run a padded batch.

        Args:
            speech: features f32 [B, T, 560].
            speech_lengths: valid frames i32 [B].
            language, textnorm: query rows i32 [B].

        Returns:
            ctc_logits f32 [B, T+4, V] (raw), encoder_out_lens i32 [B] = speech_lengths + 4.
        """
        rows = torch.tensor([_EMOTION_EVENT_ROWS], dtype=language.dtype, device=language.device)
        fixed = rows.expand(speech.shape[0], -1)
        queries = self.embed(torch.cat([language.unsqueeze(1), fixed, textnorm.unsqueeze(1)], dim=1))
        x = torch.cat([queries, speech], dim=1) * self.scale
        position = torch.arange(x.shape[1], device=speech.device)
        x = x + _position_encoding(position, self.config.input_size)
        lengths = speech_lengths + QUERIES
        # unsqueeze, because indexing with None is traced as a Slice of everything
        inside = position.unsqueeze(0) < lengths.unsqueeze(1)  # [B, T+4]
        valid = inside.unsqueeze(-1).to(x.dtype)
        open_scores = torch.zeros_like(inside, dtype=x.dtype)
        scores_mask = (
            open_scores.masked_fill(~inside, _MASKED_SCORE).unsqueeze(1).unsqueeze(1)
        )  # [B, 1, 1, T+4]
        return self.ctc(self.encoder(x, valid, scores_mask)), lengths


def _position_encoding(position: Tensor, width: int) -> Tensor:
    """Sinusoids f32 [T+4, width] of positions counted from 1: all sines, then all cosines."""
    half = width // 2
    steps = torch.arange(half, dtype=torch.float32, device=position.device)
    rates = torch.exp(steps * (-math.log(10000.0) / (half - 1)))
    angles = (position.to(torch.float32) + 1.0).unsqueeze(1) * rates.unsqueeze(0)
    return torch.cat([torch.sin(angles), torch.cos(angles)], dim=1)


def load_checkpoint(assets: Assets) -> SenseVoice:
    """The model of `assets.checkpoint` on the CPU, float32, in eval mode.

    Accepts a flat state dict or one wrapped as `state_dict`, `model_state_dict` or `model`, with or without a
    `module.` prefix. Raises ArtifactError that names missing, extra, misshaped and not finite tensors, a few of each.
    """
    path = assets.checkpoint
    if path is None or not path.is_file():
        raise ArtifactError(assets.without_checkpoint())
    state = _unwrap(_read(path), path)
    with torch.device("meta"):
        model = SenseVoice(ModelConfig.from_assets(assets))
    _check_fit(model.state_dict(), state, path, assets)
    state = {name: tensor.to(torch.float32) for name, tensor in state.items()}
    broken = [name for name, tensor in state.items() if not torch.isfinite(tensor).all()]
    if broken:
        raise ArtifactError(
            f"{path} holds numbers that are not finite (NaN or infinity) in {_tensors(broken)}: {_shortened(broken)}; "
            f"take a checkpoint from before the training diverged, or {AGAIN}"
        )
    model.load_state_dict(state, assign=True)
    return model.eval()


def _read(path: Path) -> Any:
    if found := stranger(path):
        raise ArtifactError(f"{path} {found}")
    # files of PyTorch before 1.6 are no zip archives and cannot be mapped
    zipped = zipfile.is_zipfile(path)
    if zipped:
        _check_archive(path)
    elif begins_as_zip(path):
        raise ArtifactError(f"{path} is cut off after {path.stat().st_size:,} bytes: {AGAIN}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's advice on files that are then refused
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except (MemoryError, OSError):
        raise
    except pickle.UnpicklingError as error:
        # torch's own words explain how to run the code inside
        raise ArtifactError(
            f"{path} is no PyTorch checkpoint, or one with objects other than tensors, which could run code when "
            "loaded: save its state_dict() alone"
        ) from error
    except Exception as error:  # damaged files raise almost anything, in torch's words, not for people
        if "allocate memory" in str(error):
            raise MemoryError(str(error)) from error
        raise ArtifactError(
            f"{path} is no PyTorch checkpoint, or a damaged or cut off one: {AGAIN}"
        ) from error


def _check_archive(path: Path) -> None:
    """Refuse zip archives that torch did not write, and damage that mapping the file would not notice."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            inside = {name.rsplit("/", 1)[-1] for name in names}
            if "constants.pkl" in inside:
                raise ArtifactError(
                    f"{path} is a TorchScript archive, which holds a program: save its state_dict() alone"
                )
            if "data.pkl" not in inside:
                raise ArtifactError(_foreign_archive(path, names))
            damaged = archive.testzip()
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError, zlib.error) as error:
        raise ArtifactError(f"{path} is a damaged PyTorch checkpoint: {AGAIN}") from error
    if damaged is not None:
        raise ArtifactError(
            f"{path} is damaged (the checksum of {damaged} in it is another): {AGAIN}; a file saved without "
            "checksums has to be saved again with them"
        )


def _foreign_archive(path: Path, names: list[str]) -> str:
    packed = next((name for name in names if name.endswith((".pt", ".pth", ".bin"))), None)
    if packed is not None:
        return f"{path} is a zip archive around {packed}: unpack it first"
    return f"{path} is a zip archive without a PyTorch checkpoint inside: {AGAIN}"


def _unwrap(loaded: Any, path: Path) -> dict[str, Tensor]:
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if (
        not isinstance(loaded, dict)
        or not loaded
        or not all(isinstance(one, Tensor) for one in loaded.values())
    ):
        raise ArtifactError(
            f"{path} holds {_contents(loaded)}, not a state dict of tensors: save the model's state_dict() alone"
        )
    odd = [str(name) for name, one in loaded.items() if not one.is_floating_point()]
    if odd:
        raise ArtifactError(
            f"{path} holds {_tensors(odd)} that are no floating-point weights (quantized?): {_shortened(odd)}; take "
            "the checkpoint from before quantization"
        )
    return {str(name).removeprefix("module."): tensor for name, tensor in loaded.items()}


def _contents(loaded: Any) -> str:
    if isinstance(loaded, dict):
        return f"a dict of {_shortened([str(key) for key in loaded])}" if loaded else "an empty dict"
    return f"one {type(loaded).__name__}"


def _check_fit(wanted: dict[str, Tensor], found: dict[str, Tensor], path: Path, assets: Assets) -> None:
    """Raise ArtifactError unless names and shapes are the ones that config and tokenizer ask for."""
    missing = sorted(wanted.keys() - found.keys())
    extra = sorted(found.keys() - wanted.keys())
    misshaped = [
        name for name in sorted(wanted.keys() & found.keys()) if wanted[name].shape != found[name].shape
    ]
    if 2 * len(missing) > len(wanted):
        raise ArtifactError(_another_model(wanted, found, missing, path))
    if misshaped and not missing and not extra and all(name.startswith("ctc.") for name in misshaped):
        pieces, rows = (len(state["ctc.ctc_lo.weight"]) for state in (wanted, found))
        if pieces != rows:
            raise ArtifactError(
                f"{path} was trained with {rows:,} tokens, {assets.file(BPE_NAME).name} beside it has {pieces:,} "
                f"(ctc.ctc_lo.weight {list(found['ctc.ctc_lo.weight'].shape)}): take both from the same release"
            )
    shapes = [f"{one} {list(found[one].shape)} (expected {list(wanted[one].shape)})" for one in misshaped]
    named = (("missing", missing), ("not expected", extra), ("wrong shape", shapes))
    problems = [f"{len(names)} {kind}: {_shortened(names)}" for kind, names in named if names]
    if problems:
        raise ArtifactError(
            f"{path} does not fit {assets.file(CONFIG_NAME)}: {'; '.join(problems)}; take both from the same release"
        )


def _another_model(
    wanted: dict[str, Tensor], found: dict[str, Tensor], missing: list[str], path: Path
) -> str:
    for name in found:
        prefix = name.removesuffix("embed.weight")
        if prefix != name and all(prefix + one in found for one in wanted):
            return f"{path} holds the model inside another (names begin with {prefix!r}): save the inner one alone"
    first = next((name for name in missing if name.startswith("encoder.encoders0.")), missing[0])
    return (
        f"{path} looks like another model: {len(missing)} of {len(wanted)} tensors are missing (no {first}), it holds "
        f"{_shortened(sorted(found))}; svtool exports SenseVoice Small only, such as  svtool export iic/SenseVoiceSmall"
    )


def _tensors(names: list[str]) -> str:
    return f"{len(names)} tensor{'s' if len(names) != 1 else ''}"


def _shortened(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
