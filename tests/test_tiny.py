from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

from svtool import tiny
from svtool.errors import SvtoolError
from svtool.utterances import read_utterances


def test_281_recordings_come_with_their_texts() -> None:
    assert len(tiny.recordings()) == 281
    for one in tiny.recordings().values():
        assert (tiny.SOUNDS_DIR / f"{one.id}.g722").is_file()
        assert one.text == one.text.lower()
        assert not any(letter.isdigit() for letter in one.text)


def test_lists_have_their_sizes_and_share_no_sequence() -> None:
    drawn = {name: [entry[3] for entry in tiny.sequences(name)] for name in tiny.LISTS}
    assert (len(drawn["calibration"]), len(drawn["drift"])) == (128, 2400)
    everything = drawn["calibration"] + drawn["drift"]
    assert len(set(everything)) == len(everything)


def test_at_least_half_of_each_drift_part_is_mixed_words() -> None:
    sets = [(subset.name, word_set) for subset, _, word_set, _ in tiny.sequences("drift")]
    for name in ("clean", "10db", "5db"):
        mine = [word_set for subset, word_set in sets if subset == name]
        assert len(mine) == 800
        assert mine.count("mixed") >= 400


def test_rendering_is_cached_and_repeatable(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SVTOOL_CACHE", str(tmp_path / "first"))
    first = tiny.render("calibration")
    assert tiny.render("calibration") == first
    monkeypatch.setenv("SVTOOL_CACHE", str(tmp_path / "second"))
    second = tiny.render("calibration")
    assert first.read_bytes() == second.read_bytes()
    for name in ("clean-0000", "5db-0041"):
        assert (first.parent / f"{name}.wav").read_bytes() == (second.parent / f"{name}.wav").read_bytes()
    assert len(read_utterances(first).utterances) == 128


def test_noise_has_the_level_it_says() -> None:
    speech = np.random.default_rng(1).standard_normal(16000).astype(np.float32)
    noise = tiny.pink_noise(16000, np.random.default_rng(2))
    mixed = tiny.add_noise(speech, noise, 5.0)
    ratio = np.mean(speech**2) / np.mean((mixed - speech) ** 2)
    assert 10 * np.log10(ratio) == pytest.approx(5.0, abs=0.05)


def test_no_digital_zeros_between_recordings() -> None:
    path = tiny.render("calibration").parent / "clean-0000.wav"
    with wave.open(str(path)) as stream:
        samples = np.frombuffer(stream.readframes(stream.getnframes()), "<i2").astype(np.float64)
    frames = samples[: len(samples) // 160 * 160].reshape(-1, 160)
    assert (np.abs(frames).max(axis=1) > 0).all()


def test_sixteen_bit_rounds() -> None:
    assert tiny.to_int16(np.array([0.5 / 32768, 1.6 / 32768, 2.0, -2.0], np.float32)).tolist() == [
        0,
        2,
        32767,
        -32768,
    ]


def test_an_unknown_list_names_the_known_ones() -> None:
    with pytest.raises(SvtoolError, match="tiny:calibration, tiny:drift") as caught:
        tiny.render("nonsense")
    assert caught.value.exit_code == 1  # like a list file that does not exist


@pytest.mark.parametrize("kind", ["proc", "file", "below a file", "link to nothing"])
def test_a_cache_folder_that_cannot_be_used_says_whose_it_is(kind: str, tmp_path, monkeypatch) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "absent" / "deep")
    (tmp_path / "half").mkdir()
    folder = {"proc": Path("/proc/nope"), "file": file, "below a file": file / "x", "link to nothing": link}[
        kind
    ]
    monkeypatch.setenv("SVTOOL_CACHE", str(folder))
    with pytest.raises(
        SvtoolError, match=r"cannot be used \(.+\): name another one with SVTOOL_CACHE"
    ) as refused:
        tiny.render("calibration")
    assert str(refused.value).startswith(f"svtool's cache folder {folder} ")


def test_a_user_without_a_home_is_told_of_the_setting(monkeypatch) -> None:
    for name in ("SVTOOL_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # such a user exists in containers only
    with pytest.raises(SvtoolError, match="SVTOOL_CACHE"):
        tiny.cache_dir()
