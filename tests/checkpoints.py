"""Small random checkpoints in the official file layout: same code paths as the real one, a second to export."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import yaml

from svtool import tiny
from svtool.assets import BPE_NAME, CHECKPOINT_NAME, CMVN_NAME, CONFIG_NAME, CONFIGURATION_NAME, read_assets
from svtool.model import ModelConfig, SenseVoice

SIZES = {"output_size": 32, "attention_heads": 2, "linear_units": 48, "num_blocks": 2, "tp_blocks": 1}


def write_checkpoint(folder: Path, seed: int = 0, **sizes: int) -> Path:
    """A SenseVoice folder with the embedded model's tokenizer and CMVN; `sizes` as in `encoder_conf`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (CMVN_NAME, BPE_NAME, CONFIGURATION_NAME):
        shutil.copy(tiny.MODEL_DIR / name, folder / name)
    config: dict[str, Any] = yaml.safe_load((tiny.MODEL_DIR / CONFIG_NAME).read_text(encoding="utf-8"))
    config["encoder_conf"] |= SIZES | sizes
    del config["frontend_conf"]["dither"]  # as in the published file
    (folder / CONFIG_NAME).write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    torch.save(random_state(folder, seed), folder / CHECKPOINT_NAME)
    return folder


def random_state(folder: Path, seed: int) -> dict[str, torch.Tensor]:
    """Seeded values of every tensor; norms and biases differ from their defaults, so that nothing cancels."""
    torch.manual_seed(seed)
    model = SenseVoice(ModelConfig.from_assets(read_assets(folder, name="random")))
    return {
        name: tensor + 0.1 * torch.randn_like(tensor) if tensor.dim() < 2 else tensor
        for name, tensor in model.state_dict().items()
    }
