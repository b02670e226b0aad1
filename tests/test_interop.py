"""The files beside an exported model, and what the model file itself says to other runtimes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml

from svtool import interop
from svtool.assets import BPE_NAME, CMVN_NAME, CONFIG_NAME, CONFIGURATION_NAME, Assets, read_assets
from svtool.errors import ArtifactError


@pytest.fixture
def source(tiny_assets: Assets, tmp_path: Path) -> Path:
    """The embedded model's small files, to change."""
    folder = tmp_path / "source"
    folder.mkdir()
    for name in (CONFIG_NAME, CONFIGURATION_NAME, CMVN_NAME, BPE_NAME):
        shutil.copy(tiny_assets.file(name), folder / name)
    return folder


def written(source: Path) -> Path:
    folder = source.parent / "written"
    folder.mkdir()
    interop.write_files(read_assets(source, name="source"), folder)
    return folder


def test_the_names_are_those_that_other_runtimes_look_for(source: Path) -> None:
    assert sorted(path.name for path in written(source).iterdir()) == [
        "am.mvn",
        "chn_jpn_yue_eng_ko_spectok.bpe.model",
        "config.yaml",
        "configuration.json",
        "tokens.json",
        "tokens.txt",
    ]


@pytest.mark.case("A10")
def test_dither_is_zero_whatever_the_source_says(source: Path) -> None:
    for dither in (None, 1.0):
        config = yaml.safe_load((source / CONFIG_NAME).read_text(encoding="utf-8"))
        config["frontend_conf"].pop("dither", None)
        if dither is not None:
            config["frontend_conf"]["dither"] = dither
        (source / CONFIG_NAME).write_text(yaml.safe_dump(config), encoding="utf-8")
        folder = written(source)
        after = yaml.safe_load((folder / CONFIG_NAME).read_text(encoding="utf-8"))
        assert after["frontend_conf"].pop("dither") == 0.0
        config["frontend_conf"].pop("dither", None)
        assert after == config
        shutil.rmtree(folder)


def test_tokens_are_in_id_order(source: Path, tiny_assets: Assets) -> None:
    folder = written(source)
    pieces = tiny_assets.tokens.pieces
    lines = (folder / "tokens.txt").read_text(encoding="utf-8").split("\n")
    assert lines.pop() == ""
    assert [line.rsplit(" ", 1) for line in lines] == [[piece, str(n)] for n, piece in enumerate(pieces)]
    assert json.loads((folder / "tokens.json").read_text(encoding="utf-8")) == list(pieces)


def test_a_missing_configuration_is_made(source: Path) -> None:
    (source / CONFIGURATION_NAME).unlink()
    made = json.loads((written(source) / CONFIGURATION_NAME).read_text(encoding="utf-8"))
    assert made["file_path_metas"]["tokenizer_conf"] == {"bpemodel": BPE_NAME}
    assert made["file_path_metas"]["frontend_conf"] == {"cmvn_file": CMVN_NAME}


@pytest.mark.parametrize("text", ["", "{", "[]", '"words"'])
def test_a_broken_configuration_is_named(source: Path, text: str) -> None:
    (source / CONFIGURATION_NAME).write_text(text, encoding="utf-8")
    with pytest.raises(
        ArtifactError, match=r"configuration\.json (is empty|is broken at line 1|holds no settings)"
    ):
        written(source)


def test_the_model_carries_what_sherpa_reads(tiny_model: Path, tiny_assets: Assets) -> None:
    props = {entry.key: entry.value for entry in onnx.load(tiny_model).metadata_props}
    wanted = {
        "vocab_size": len(tiny_assets.tokens.pieces),
        "lfr_window_size": 7,
        "lfr_window_shift": 6,
        "normalize_samples": 0,
        "with_itn": 14,
        "without_itn": 15,
        "lang_auto": 0,
        "lang_zh": 3,
        "lang_en": 4,
        "lang_yue": 7,
        "lang_ja": 11,
        "lang_ko": 12,
    }
    assert {key: int(props[key]) for key in wanted} == wanted
    assert "Nano" not in props["comment"]
    for key, values in (("neg_mean", tiny_assets.cmvn.shift), ("inv_stddev", tiny_assets.cmvn.scale)):
        parsed = np.array([float(one) for one in props[key].split(",")], np.float32)
        np.testing.assert_array_equal(parsed, values)


def test_no_path_of_this_machine_is_in_the_exported_files(tiny_model: Path) -> None:
    for path in tiny_model.parent.iterdir():
        content = path.read_bytes()
        for word in (str(Path(__file__).parents[1]), "site-packages", ".venv", "torch/nn/modules"):
            assert word.encode() not in content, f"{path.name} holds {word}"
