"""The files beside an exported model, so that funasr-onnx, sherpa-onnx and FunASR's runtimes load the directory.

Names and keys are theirs. Knows nothing of graphs.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from svtool.assets import (
    BPE_NAME,
    CMVN_NAME,
    CONFIG_NAME,
    CONFIGURATION_NAME,
    LANGUAGES,
    TEXTNORMS,
    Assets,
)
from svtool.errors import ArtifactError
from svtool.frontend import Cmvn, FloatArray
from svtool.intake import read_json

TOKENS_TXT, TOKENS_JSON = "tokens.txt", "tokens.json"
FILES = (CONFIG_NAME, CONFIGURATION_NAME, CMVN_NAME, BPE_NAME, TOKENS_TXT, TOKENS_JSON)


def write_files(assets: Assets, folder: Path) -> None:
    """Write everything but `model.onnx` into `folder`."""
    import yaml

    config = dict(assets.config)
    # the official config leaves dither at its default of 1.0, which makes every run of funasr-onnx different
    config["frontend_conf"] = {**config["frontend_conf"], "dither": 0.0}
    _write(folder / CONFIG_NAME, yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
    _write(folder / CONFIGURATION_NAME, json.dumps(_configuration(assets), indent=2) + "\n")
    shutil.copyfile(assets.file(CMVN_NAME), folder / CMVN_NAME)
    shutil.copyfile(assets.file(BPE_NAME), folder / BPE_NAME)
    pieces = assets.tokens.pieces
    _write(folder / TOKENS_TXT, "".join(f"{piece} {index}\n" for index, piece in enumerate(pieces)))
    _write(folder / TOKENS_JSON, json.dumps(list(pieces), ensure_ascii=False) + "\n")


def metadata(vocab_size: int, cmvn: Cmvn) -> dict[str, str]:
    """What sherpa-onnx reads from the model file itself."""
    languages = {f"lang_{name}": str(LANGUAGES[name]) for name in ("auto", "zh", "en", "yue", "ja", "ko")}
    return {
        "model_type": "sense_voice_ctc",
        "vocab_size": str(vocab_size),
        "lfr_window_size": "7",
        "lfr_window_shift": "6",
        "normalize_samples": "0",
        "with_itn": str(TEXTNORMS["withitn"]),
        "without_itn": str(TEXTNORMS["woitn"]),
        **languages,
        "neg_mean": _joined(cmvn.shift),
        "inv_stddev": _joined(cmvn.scale),
        "comment": "SenseVoice Small, exported by svtool",
    }


def _configuration(assets: Assets) -> dict[str, Any]:
    path = assets.file(CONFIGURATION_NAME)
    if path.is_file():
        remedy = "repair it, or delete it to have one made"
        found = read_json(path, remedy)
        if not isinstance(found, dict):
            raise ArtifactError(f"{path} holds no settings (names with values): {remedy}")
        return found
    paths = {"tokenizer_conf": {"bpemodel": BPE_NAME}, "frontend_conf": {"cmvn_file": CMVN_NAME}}
    return {"task": "auto-speech-recognition", "file_path_metas": {"config": CONFIG_NAME, **paths}}


def _joined(values: FloatArray) -> str:
    # nine digits give the same float32 back
    return ",".join(f"{value:.9g}" for value in values)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
