from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from svtool import assets, tiny
from svtool.errors import ArtifactError, SvtoolError, UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the embedded checkpoint's directory."""
    target = tmp_path / "SenseVoice"
    target.mkdir()
    for path in tiny.MODEL_DIR.iterdir():
        if path.is_file():
            shutil.copyfile(path, target / path.name)
    return target


def test_tiny_is_found_by_name(tiny_assets: assets.Assets) -> None:
    assert tiny_assets.name == "tiny"
    assert tiny_assets.checkpoint is not None
    assert tiny_assets.cmvn.shift.shape == tiny_assets.cmvn.scale.shape == (560,)
    assert np.array_equal(tiny_assets.cmvn.shift[:80], tiny_assets.cmvn.shift[80:160])


def test_a_directory_is_the_same_code(folder: Path, tiny_assets: assets.Assets) -> None:
    found = assets.find_assets(str(folder))
    assert found.name == "SenseVoice"
    assert found.tokens.pieces == tiny_assets.tokens.pieces


def test_tags_are_apart_from_text(tiny_assets: assets.Assets) -> None:
    tokens = tiny_assets.tokens
    assert tokens.tag_name(tokens.tag_id("en")) == "en"
    assert set(tokens.language_ids) == {"zh", "en", "yue", "ja", "ko", "nospeech"}
    assert {"withitn", "woitn"} == set(tokens.itn_ids)
    assert tokens.text(range(len(tokens.pieces))).find("<|") == -1
    assert tokens.text([0, *tokens.tag_ids, 1, 2]) == ""


@pytest.mark.case("E11")
@pytest.mark.parametrize("change", [
    ("model: SenseVoiceSmall", "model: Paraformer"),
    ("encoder: SenseVoiceEncoderSmall", "encoder: SANMEncoder"),
    ("n_mels: 80", "n_mels: 128"),
    ("lfr_m: 7", "lfr_m: 1"),
    ("window: hamming", "window: povey"),
])  # fmt: skip
def test_another_model_family_is_refused(folder: Path, change: tuple[str, str]) -> None:
    path = folder / "config.yaml"
    text = path.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change))
    with pytest.raises(ArtifactError, match="not SenseVoice Small"):
        assets.find_assets(str(folder))


@pytest.mark.case("E11")
@pytest.mark.parametrize("name", ["SenseVoiceSmal", "paraformer", "./nowhere"])
def test_an_unknown_source_names_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError, match="iic/SenseVoiceSmall"):
        assets.find_assets(name)


@pytest.mark.parametrize("name", [assets.CONFIG_NAME, assets.CMVN_NAME, assets.BPE_NAME])
def test_missing_files_are_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ArtifactError, match=name.replace(".", r"\.")):
        assets.find_assets(str(folder))


@pytest.mark.parametrize("name", [assets.CONFIG_NAME, assets.CMVN_NAME, assets.BPE_NAME])
@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe\x01" * 50, b"{[: not yaml"])
def test_damaged_files_are_named(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(ArtifactError, match=name.replace(".", r"\.")):
        assets.find_assets(str(folder))


def test_an_exported_source_a_file_and_a_missing_one_are_told_apart(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"config\.yaml is a file, not a directory: .* the one it is in \("):
        assets.find_assets(str(folder / assets.CONFIG_NAME))
    with pytest.raises(UsageError, match="is no directory and no known model"):
        assets.find_assets(str(folder / "nothing"))


def test_the_tokenizer_of_another_model_is_refused(folder: Path) -> None:
    import sentencepiece

    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(["one two three", "four five six"] * 20),
        model_prefix=str(folder / "other"),
        vocab_size=22,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (folder / "other.model").replace(folder / assets.BPE_NAME)
    with pytest.raises(ArtifactError, match="tokenizer of another model"):
        assets.find_assets(str(folder))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (assets.CONFIG_NAME, b"model: a\nencoder: b: c\n", "is broken at line 2, column 11"),
        (assets.CONFIG_NAME, b"- a\n", "holds no settings"),
        (assets.CMVN_NAME, b"hello", "no <AddShift> and no <Rescale>"),
        (
            assets.CMVN_NAME,
            b"<AddShift> 560 560\n<LearnRateCoef> 0 [ 1 2 3 ]\n",
            "line 2 (3 values, expected 560",
        ),
        (assets.BPE_NAME, b"hello", "is a text file ('hello')"),
        (assets.BPE_NAME, b"\x00\xff\xfe\x01" * 50, "no SentencePiece model"),
    ],
)
def test_damage_is_placed_and_a_next_step_named(folder: Path, name: str, content: bytes, said: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(ArtifactError) as caught:
        assets.find_assets(str(folder))
    assert str(folder / name) in str(caught.value)
    assert said in str(caught.value)
    assert "copy or download it again" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["nan", "inf", "x"])
def test_a_cmvn_value_that_is_no_number_is_refused(folder: Path, value: str) -> None:
    path = folder / assets.CMVN_NAME
    lines = path.read_text().splitlines()
    cells = lines[4].split()
    cells[10] = value
    lines[4] = " ".join(cells)
    path.write_text("\n".join(lines))
    with pytest.raises(ArtifactError, match=rf"am\.mvn is broken at line 5, value 8 \('{value}'"):
        assets.find_assets(str(folder))


@pytest.mark.case("D6")
def test_language_names() -> None:
    assert assets.parse_language("ZH") == "zh"
    assert assets.parse_language(" auto ") == "auto"
    with pytest.warns(UserWarning, match="'zn' is read as 'zh'"):
        assert assets.parse_language("zn") == "zh"
    for name in ("xx", "", "english", "nospeech"):
        with pytest.raises(UsageError, match="auto, zh, en, yue, ja, ko"):
            assets.parse_language(name)


@pytest.mark.parametrize("source", list(assets.HUB_MODELS))
def test_without_the_hub_clients_the_files_are_named(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setitem(sys.modules, "modelscope.hub.snapshot_download", None)
    with pytest.raises(SvtoolError, match=r"\.\[hub\].*model\.pt.*config\.yaml.*am\.mvn"):
        assets.find_assets(source)


def test_without_a_network_one_sentence_says_what_to_put_where(monkeypatch: pytest.MonkeyPatch) -> None:
    # the client's many retries would take 25 s; what it raises in the end is of this kind
    def refuse(source: str, revision: str | None) -> Path:
        raise ConnectionError("no route to host\nand a second line")

    monkeypatch.setattr(assets, "_from_modelscope", refuse)
    with pytest.raises(SvtoolError, match=r"no route to host.*svtool export \./SenseVoiceSmall") as caught:
        assets.find_assets("iic/SenseVoiceSmall")
    assert "\n" not in str(caught.value)


def test_the_real_client_without_a_hub_ends_in_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    # a closed port on this machine stands for the hub, so that a machine with a network downloads nothing
    away = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "svtool", "export", "FunAudioLLM/SenseVoiceSmall"],
        env=os.environ | away,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: FunAudioLLM/SenseVoiceSmall could not be downloaded")
    assert "svtool export ./SenseVoiceSmall" in last


def test_downloaded_files_are_checked_against_the_published_digests(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assets, "_from_huggingface", lambda source, revision: folder)
    with pytest.raises(ArtifactError, match=r"model\.pt has sha256"):
        assets.find_assets("FunAudioLLM/SenseVoiceSmall")
    assert assets.find_assets("FunAudioLLM/SenseVoiceSmall", revision="v2").revision == "v2"
