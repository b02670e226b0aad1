"""The front end against funasr's own features (tests/golden), and what it owes for any waveform."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from svtool.frontend import Cmvn, Frontend, lfr_length

FloatArray = npt.NDArray[np.float32]

GOLDEN = Path(__file__).parent / "golden"
CHIRPS = ("chirp_up", "chirp_down")
OTHERS = (
    *("tone_100", "tone_440", "tone_1000_quiet", "tone_3900_loud", "tones_chord", "square_300_full"),
    *("silence", "offset", "click", "speech"),
)


@pytest.fixture(scope="module")
def golden() -> dict[str, npt.NDArray[Any]]:
    with np.load(GOLDEN / "frontend.npz") as archive:
        return dict(archive)


@pytest.fixture(scope="module")
def frontend() -> Frontend:
    """With the CMVN file read here and not by svtool.assets, so that the two cannot be wrong together."""
    lines = (GOLDEN / "am.mvn").read_text(encoding="ascii").splitlines()
    values = {
        name: np.array(lines[index + 1].split()[3:-1], dtype=np.float32)
        for index, line in enumerate(lines)
        for name in ("<AddShift>", "<Rescale>")
        if line.startswith(name)
    }
    return Frontend(Cmvn(shift=values["<AddShift>"], scale=values["<Rescale>"]))


def waveform(int16: npt.NDArray[Any]) -> FloatArray:
    return int16.astype(np.float32) / np.float32(32768)


def noise(golden: dict[str, npt.NDArray[Any]]) -> FloatArray:
    """The same integer draws as tools/golden/make_golden.py: numpy froze this generator's stream."""
    draws = np.random.RandomState(int(golden["noise_seed"])).randint(-6000, 6001, size=16000)
    return waveform(draws)


def worst(ours: FloatArray, reference: npt.NDArray[Any]) -> float:
    assert ours.shape == reference.shape
    assert ours.dtype == np.float32
    return float(np.abs(ours - reference).max())


@pytest.mark.case("A14")
@pytest.mark.parametrize("name", OTHERS)
def test_equals_funasr(name: str, golden: dict[str, npt.NDArray[Any]], frontend: Frontend) -> None:
    ours = frontend.features(waveform(golden[f"samples_{name}"]))
    assert worst(ours, golden[f"features_{name}"]) <= 1e-4


@pytest.mark.case("A14")
@pytest.mark.parametrize("name", CHIRPS)
def test_equals_funasr_on_chirps(name: str, golden: dict[str, npt.NDArray[Any]], frontend: Frontend) -> None:
    """Far from the chirp a bin holds rounding noise: exact arithmetic is 1e-4 from the reference too."""
    ours = frontend.features(waveform(golden[f"samples_{name}"]))
    assert worst(ours, golden[f"features_{name}"]) <= 5e-4


@pytest.mark.case("A14")
def test_equals_funasr_on_noise(golden: dict[str, npt.NDArray[Any]], frontend: Frontend) -> None:
    assert worst(frontend.features(noise(golden)), golden["features_noise"]) <= 1e-4


def test_equals_funasr_at_every_recorded_length(
    golden: dict[str, npt.NDArray[Any]], frontend: Frontend
) -> None:
    whole = noise(golden)
    for length in golden["lengths"].tolist():
        ours = frontend.features(whole[:length])
        assert len(ours) == lfr_length(length)
        assert worst(ours, golden[f"length_{length}"]) <= 1e-4, length
