from __future__ import annotations

from pathlib import Path

import pytest

from svtool.config import Config, Profile, load_config, parse_profile
from svtool.errors import ArtifactError, UsageError

SHIPPED = Path(__file__).parent.parent / "configs" / "sensevoice-small.toml"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_shipped_file_states_the_defaults() -> None:
    assert load_config(SHIPPED) == Config()


def test_left_out_keys_keep_their_defaults(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, '[engine]\nprofiles = ["4:10"]\n[gate]\ndrift_budget = 1\n'))
    assert config.engine.profiles == (Profile(4, 10.0),)
    assert config.gate.drift_budget == 1.0
    assert config.calibration == Config().calibration


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("[engine]\nprofile = []", "profiles"),
        ("[precisions]\nexclude = []", "precision"),
        ("[gate]\ndrift_buget = 1.0", "drift_budget"),
    ],
)
def test_unknown_key_names_the_nearest_known_one(tmp_path: Path, text: str, nearest: str) -> None:
    with pytest.raises(ArtifactError, match=f"did you mean '{nearest}'"):
        load_config(write(tmp_path, text))


@pytest.mark.parametrize(
    "text",
    [
        "engine = 3",
        "[gate]\ndrift_budget = 'much'",
        "[precision]\nexclude = 'w_1'",
        "[gate]\ndrift_budget = true",
    ],
)
def test_values_of_another_type_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ArtifactError, match="cannot be"):
        load_config(write(tmp_path, text))


def test_broken_or_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ArtifactError, match=r"mine\.toml is not a TOML file: .* \(at line 2, column 10\); compare"
    ):
        load_config(write(tmp_path, "[gate]\nbudget = = 1"))
    assert load_config(write(tmp_path, "")) == Config()
    with pytest.raises(ArtifactError, match="does not exist"):
        load_config(tmp_path / "absent.toml")


def test_profile_seconds_become_feature_frames() -> None:
    assert [parse_profile(text).frames for text in ("1:0.06", "1:5", "1:15", "8:30")] == [1, 84, 250, 500]
    assert str(parse_profile("16:7.5")) == "16:7.5"


@pytest.mark.parametrize(
    "text", ["", "16", "0:30", "16:", "16:0", "16:-1", "a:5", "16:nan", "16:inf", "-1:5"]
)
def test_profiles_that_mean_nothing_are_usage_errors(text: str) -> None:
    with pytest.raises(UsageError, match="B:SECONDS"):
        parse_profile(text)


def test_a_profile_that_means_nothing_in_a_file_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(
        ArtifactError, match=r"mine\.toml: engine\.profiles: the profile '16' is not B:SECONDS"
    ):
        load_config(write(tmp_path, '[engine]\nprofiles = ["16"]'))
