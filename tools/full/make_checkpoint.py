"""A random checkpoint of SenseVoice Small's true size in the official file layout: 917 tensors, 234.0 M parameters.

For checks of parity, time, memory and loading where the published weights are not at hand. It recognises nothing; its
values are scaled so that activations stay finite, most frames are told apart, and about half of them are blank.

    python tools/full/make_checkpoint.py FOLDER
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from sentencepiece import sentencepiece_model_pb2
from torch import Tensor

from svtool.assets import BPE_NAME, CHECKPOINT_NAME, CMVN_NAME, CONFIG_NAME, CONFIGURATION_NAME
from svtool.model import ModelConfig, SenseVoice

spm: Any = sentencepiece_model_pb2  # its classes are made at import: a type checker sees none

SEED = 2407
TENSORS, PARAMETERS = 917, 233_999_167
PIECES = 25055
FIRST_TAG = 24884
# the pieces with known ids; the others are filled in
PLAIN = {
    124: "▁",
    9676: "!",
    9686: ",",
    9688: ".",
    9705: "?",
    9728: "、",
    9729: "。",
    24879: "，",
    24883: "？",
}
TAGS = {
    **dict(enumerate(("zh", "en", "zh/en", "en/zh", "yue", "minnan", "wuyu", "dialect", "ja", "de"), 24884)),
    **dict(enumerate(("es", "ru", "ko", "fr"), 24894)),
    24988: "su",
    **dict(enumerate(("ASR", "AED", "SER", "nospeech"), 24989)),
    **dict(enumerate(("Speech", "/Speech", "BGM", "/BGM", "Laughter", "/Laughter"), 24993)),
    **dict(enumerate(("Applause", "/Applause"), 24999)),
    **dict(enumerate(("HAPPY", "SAD", "ANGRY", "NEUTRAL", "FEARFUL", "DISGUSTED"), 25001)),
    **dict(enumerate(("SURPRISED", "OTHER", "EMO_UNKNOWN"), 25007)),
    **dict(enumerate(("Cry", "Sneeze", "Breath", "Cough", "Sing", "Speech_Noise"), 25010)),
    **dict(enumerate(("withitn", "woitn", "GBG", "Event_UNK"), 25016)),
    **dict(enumerate((f"SPECIAL_TOKEN_{number}" for number in range(1, 36)), 25020)),
}
_LOGIT_SCALE = 2.0
# what the largest of 25055 normal values reaches: the blank then wins about half of the frames
_BLANK_BIAS = 4.2 * _LOGIT_SCALE


def make(folder: Path) -> Path:
    """Write the five files into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / BPE_NAME).write_bytes(tokenizer())
    (folder / CMVN_NAME).write_text(cmvn(), encoding="utf-8")
    (folder / CONFIG_NAME).write_text(yaml.safe_dump(config(), sort_keys=False), encoding="utf-8")
    (folder / CONFIGURATION_NAME).write_text(json.dumps(configuration(), indent=2) + "\n", encoding="utf-8")
    state = weights()
    found = len(state), sum(tensor.numel() for tensor in state.values())
    if found != (TENSORS, PARAMETERS):
        raise SystemExit(
            f"{found[0]} tensors, {found[1]} parameters; SenseVoice Small has {TENSORS}, {PARAMETERS}"
        )
    torch.save(state, folder / CHECKPOINT_NAME)
    return folder


def weights() -> dict[str, Tensor]:
    """Every tensor of the model, float32, from one seed."""
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in SenseVoice(ModelConfig()).state_dict().items()}
    generator = torch.Generator().manual_seed(SEED)
    return {name: _values(name, shape, generator) for name, shape in shapes.items()}


def _values(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    tensor = torch.randn(shape, generator=generator)
    if "norm" in name:  # away from 1 and 0, so that a norm left out shows
        return tensor.mul_(0.1).add_(1.0 if name.endswith("weight") else 0.0)
    if name == "ctc.ctc_lo.bias":
        tensor.mul_(0.1)
        tensor[0] = _BLANK_BIAS
        return tensor
    if name.endswith("bias"):
        return tensor.mul_(0.05)
    fan_in = math.prod(shape[1:]) if name != "embed.weight" else 1
    scale = _LOGIT_SCALE if name == "ctc.ctc_lo.weight" else 1.0
    return tensor.mul_(scale / math.sqrt(fan_in))


def tokenizer() -> bytes:
    """A SentencePiece model of 25055 pieces with the official tags at their ids."""
    model = spm.ModelProto()
    kinds = spm.ModelProto.SentencePiece
    fillers = _fillers()
    for index in range(PIECES):
        piece = model.pieces.add()
        piece.score = -float(index)
        if index < 3:
            piece.piece = ("<unk>", "<s>", "</s>")[index]
            piece.type = kinds.UNKNOWN if index == 0 else kinds.CONTROL
        elif index >= FIRST_TAG:
            piece.piece = f"<|{TAGS.get(index, f'lang{index}')}|>"
            piece.type = kinds.USER_DEFINED
        else:
            piece.piece = PLAIN[index] if index in PLAIN else next(fillers)
            piece.type = kinds.NORMAL
    model.trainer_spec.model_type = spm.TrainerSpec.BPE
    model.trainer_spec.vocab_size = PIECES
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.remove_extra_whitespaces = False
    return bytes(model.SerializeToString(deterministic=True))


def _fillers() -> Iterator[str]:
    """Distinct pieces: Latin syllables with and without a word start, then Chinese characters."""
    onsets, vowels, endings = "bcdfghjklmnprstvwyz", "aeiou", "dklmnrst"
    yield from "abcdefghijklmnopqrstuvwxyz"
    for start in ("▁", ""):
        for syllable in (onset + vowel for onset in onsets for vowel in vowels):
            yield start + syllable
            yield from (start + syllable + ending for ending in endings)
            yield from (start + syllable + onset + "a" for onset in onsets)
    yield from map(chr, range(0x4E00, 0x9FFF))


def cmvn() -> str:
    """Smooth per-mel values of the size speech has, repeated for the seven stacked frames."""
    shift = [-(8.3 + 6.0 * math.sqrt(mel / 79)) for mel in range(80)] * 7
    scale = [0.155 + 0.1 * mel / 79 for mel in range(80)] * 7
    rows = [("<AddShift>", shift), ("<Rescale>", scale)]
    lines = ["<Nnet>", "<Splice> 560 560", "[ 0 ]"]
    for kind, values in rows:
        lines += [f"{kind} 560 560", f"<LearnRateCoef> 0 [ {' '.join(f'{value:.6f}' for value in values)} ]"]
    return "\n".join([*lines, "</Nnet>", ""])


def config() -> dict[str, object]:
    """As published: without `dither`, which leaves funasr-onnx at 1.0 unless the export sets it."""
    return {
        "encoder": "SenseVoiceEncoderSmall",
        "encoder_conf": {
            "output_size": 512,
            "attention_heads": 4,
            "linear_units": 2048,
            "num_blocks": 50,
            "tp_blocks": 20,
            "dropout_rate": 0.1,
            "positional_dropout_rate": 0.1,
            "attention_dropout_rate": 0.1,
            "input_layer": "pe",
            "pos_enc_class": "SinusoidalPositionEncoder",
            "normalize_before": True,
            "kernel_size": 11,
            "sanm_shfit": 0,
            "selfattention_layer_type": "sanm",
        },
        "model": "SenseVoiceSmall",
        "model_conf": {"length_normalized_loss": True, "sos": 1, "eos": 2, "ignore_id": -1},
        "tokenizer": "SentencepiecesTokenizer",
        "tokenizer_conf": {"bpemodel": None, "unk_symbol": "<unk>", "split_with_space": True},
        "frontend": "WavFrontend",
        "frontend_conf": {
            "fs": 16000,
            "window": "hamming",
            "n_mels": 80,
            "frame_length": 25,
            "frame_shift": 10,
            "lfr_m": 7,
            "lfr_n": 6,
            "cmvn_file": None,
        },
    }


def configuration() -> dict[str, object]:
    return {
        "framework": "pytorch",
        "task": "auto-speech-recognition",
        "model": {"type": "funasr"},
        "file_path_metas": {
            "init_param": CHECKPOINT_NAME,
            "config": CONFIG_NAME,
            "tokenizer_conf": {"bpemodel": BPE_NAME},
            "frontend_conf": {"cmvn_file": CMVN_NAME},
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    print(make(parser.parse_args().folder))


if __name__ == "__main__":
    main()
