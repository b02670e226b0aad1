from __future__ import annotations

import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svtool import tiny
from svtool.audio import decode_audio
from svtool.errors import UsageError
from svtool.segment import SAMPLE_RATE, THRESHOLD_DBFS, gate, is_silent, split, sustained_level_dbfs

RNG = np.random.default_rng(3)


def noise(seconds: float, level: float = 0.1) -> np.ndarray:
    return (RNG.standard_normal(int(seconds * SAMPLE_RATE)) * level).astype(np.float32)


def assert_covers(samples: np.ndarray, segments: list, longest: int) -> None:
    assert segments[0].start == 0
    assert segments[-1].end == len(samples)
    assert all(one.end == two.start for one, two in pairwise(segments))
    assert all(0 < one.end - one.start <= longest for one in segments)


@pytest.mark.case("R7", "R14")
@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(1, 400_000), max_s=st.floats(0.04, 8), search_s=st.floats(0, 9), zeros=st.booleans()
)
def test_split_covers_everything_once(length: int, max_s: float, search_s: float, zeros: bool) -> None:
    samples = np.zeros(length, np.float32) if zeros else RNG.standard_normal(length, dtype=np.float32)
    segments = split(samples, max_s=max_s, search_s=search_s)
    longest = int(max_s * SAMPLE_RATE)
    assert_covers(samples, segments, longest)
    if len(segments) > 1:
        assert segments[-1].end - segments[-1].start >= min(SAMPLE_RATE // 2, longest // 4)


def test_short_audio_is_one_segment_and_none_is_none() -> None:
    assert split(np.zeros(0, np.float32)) == []
    for length in (1, 160, 400, 30 * SAMPLE_RATE):
        assert [(one.start, one.end) for one in split(np.zeros(length, np.float32))] == [(0, length)]


@pytest.mark.parametrize("extra", [1, 399, 7999])
@pytest.mark.case("A1")
def test_no_tail_shorter_than_half_a_second(extra: int) -> None:
    segments = split(noise(30.0 + extra / SAMPLE_RATE))
    assert len(segments) == 2
    assert segments[1].end_s - segments[1].start_s >= 0.5


@pytest.mark.parametrize("pause_level", [0.0, 0.003])
@pytest.mark.parametrize("at_s", [25.2, 27.0, 29.7])
def test_cut_falls_into_the_pause(at_s: float, pause_level: float) -> None:
    samples = noise(40.0)
    low, high = int(at_s * SAMPLE_RATE), int((at_s + 0.12) * SAMPLE_RATE)
    samples[low:high] *= pause_level
    first, second = split(samples)
    assert low + 160 < first.end < high - 160
    assert second.start_s == first.end_s


def test_the_quietest_pause_is_taken_not_the_longest() -> None:
    samples = noise(40.0)
    samples[26 * SAMPLE_RATE : 27 * SAMPLE_RATE] *= 0.1
    samples[int(28.5 * SAMPLE_RATE) : int(28.6 * SAMPLE_RATE)] *= 0.01
    assert 28.5 < split(samples)[0].end_s < 28.6


def test_bursts_between_pauses_stay_whole() -> None:
    samples = np.zeros(95 * SAMPLE_RATE, np.float32)
    bursts = [(start * SAMPLE_RATE, (start + 3) * SAMPLE_RATE) for start in range(1, 90, 5)]
    for start, end in bursts:
        samples[start:end] = noise(3.0)
    segments = split(samples)
    assert_covers(samples, segments, 30 * SAMPLE_RATE)
    assert all(any(one.start <= a and b <= one.end for one in segments) for a, b in bursts)


@pytest.mark.case("R6")
def test_an_hour_is_split_with_little_memory() -> None:
    samples = np.zeros(3600 * SAMPLE_RATE, np.float32)
    for at in (600, 1800, 3000):
        samples[at * SAMPLE_RATE : (at + 2) * SAMPLE_RATE] = noise(2.0)
    tracemalloc.start()
    segments = split(samples)
    assert not is_silent(samples)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert_covers(samples, segments, 30 * SAMPLE_RATE)
    assert peak < samples.nbytes


@pytest.mark.parametrize(("max_s", "search_s"), [(0.0, 5.0), (-1.0, 5.0), (30.0, -1.0)])
def test_senseless_limits_are_refused(max_s: float, search_s: float) -> None:
    with pytest.raises(UsageError):
        split(np.zeros(100, np.float32), max_s=max_s, search_s=search_s)


def hum(hertz: float, level: float, harmonics: int = 1) -> np.ndarray:
    time = np.arange(3 * SAMPLE_RATE) / SAMPLE_RATE
    return sum(level * 0.3**k * np.sin(2 * np.pi * hertz * (k + 1) * time) for k in range(harmonics)).astype(
        np.float32
    )


def click(length: int) -> np.ndarray:
    samples = noise(3.0, 1e-4)
    samples[20_000 : 20_000 + length] = RNG.uniform(-1, 1, length)
    return samples


NOT_SPEECH = {
    "nothing": np.zeros(0, np.float32),
    "one sample": np.zeros(1, np.float32),
    "zeros 0.3 s": np.zeros(4_800, np.float32),
    "zeros 5 s": np.zeros(80_000, np.float32),
    "constant": np.full(48_000, 0.5, np.float32),
    "-60 dBFS noise": noise(30.0, 1e-3),
    "-60 dBFS noise, short": noise(0.05, 1e-3),
    "dither": np.rint(noise(3.0, 1e-4) * 32768).astype(np.float32) / 32768,
    "50 Hz hum": hum(50, 0.5),
    "60 Hz hum and harmonics": hum(60, 0.3, harmonics=3),
    "a click": click(1),
    "a click of 10 ms": click(160),
}


@pytest.mark.case("D12", "U18", "A12")
@pytest.mark.parametrize("samples", NOT_SPEECH.values(), ids=NOT_SPEECH)
def test_gate_holds_back_what_cannot_be_speech(samples: np.ndarray) -> None:
    found = gate(samples)
    assert found.silent
    assert np.isfinite(found.level_dbfs)
    assert found.level_dbfs < found.threshold_dbfs == THRESHOLD_DBFS


@pytest.mark.case("D12")
def test_faint_speech_is_never_gated() -> None:
    """Every embedded recording at -45 dBFS RMS, over a faint noise floor."""
    for path in sorted(Path(tiny.SOUNDS_DIR).glob("*.g722")):
        speech = decode_audio(path).samples
        speech = speech * np.float32(10 ** (-45 / 20) / np.sqrt(np.mean(np.square(speech))))
        padded = np.concatenate([noise(1.0, 1e-4), speech, noise(1.0, 1e-4)])
        assert not is_silent(padded), path.name


@pytest.mark.case("U18")
def test_gate_works_on_the_raw_level() -> None:
    faint = noise(2.0, 1e-3)
    assert is_silent(faint)
    assert not is_silent(faint / np.abs(faint).max())
    assert not is_silent(faint, threshold_dbfs=-70.0)


def test_level_is_that_of_a_lasting_tone() -> None:
    time = np.arange(SAMPLE_RATE) / SAMPLE_RATE
    sine = (0.1 * np.sin(2 * np.pi * 1000 * time)).astype(np.float32)
    assert sustained_level_dbfs(sine) == pytest.approx(-23.01, abs=0.1)
