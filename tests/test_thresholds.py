"""Clipping points from histograms, against the same question asked of the values themselves."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from svtool import thresholds

Values = npt.NDArray[np.float32]


def drawn(name: str) -> Values:
    rng = np.random.default_rng(5)
    count = 40_000
    values = {
        "gaussian": lambda: rng.standard_normal(count),
        "laplace": lambda: rng.laplace(size=count),
        "uniform": lambda: rng.uniform(-1, 1, count),
        "heavy tail": lambda: rng.standard_t(3, count),
        "outlier": lambda: np.append(rng.standard_normal(count), 300.0),
        "relu": lambda: np.maximum(rng.standard_normal(count), 0),
        "tiny": lambda: 1e-4 * rng.standard_normal(count),
        "huge": lambda: 1e5 * rng.standard_normal(count),
    }[name]()
    return values.astype(np.float32)


NAMES = ("gaussian", "laplace", "uniform", "heavy tail", "outlier", "relu", "tiny", "huge")


def counted(values: Values) -> thresholds.Counts:
    found = thresholds.count(values)
    assert found is not None
    return found


def largest(values: Values) -> float:
    return float(np.abs(values).max())


def quantization_error(values: Values, point: float) -> float:
    step = point / 127
    restored = np.clip(np.rint(values.astype(float) / step), -127, 127) * step
    return float(np.square(values - restored).mean())


def divergence(values: Values, point: float) -> float:
    """In words of the definition: cells, levels and loops over the values themselves."""
    magnitudes = np.abs(values.astype(float))
    magnitudes = magnitudes[magnitudes > 0]
    inside, _ = np.histogram(magnitudes[magnitudes <= point], bins=2048, range=(0, point))
    reference = inside.astype(float)
    reference[-1] += (magnitudes > point).sum()
    candidate = np.zeros(2048)
    for level in range(128):
        cells = range(16 * level, 16 * level + 16)
        alive = [cell for cell in cells if reference[cell] > 0]
        for cell in alive:
            candidate[cell] = (inside[list(cells)].sum() or 1) / len(alive)
    p, q = reference / reference.sum(), candidate / candidate.sum()
    return float(sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("percent", [50.0, 99.0, 99.99])
def test_percentiles_are_those_of_the_values(name: str, percent: float) -> None:
    values = drawn(name)
    exact = float(np.percentile(np.abs(values), percent, method="inverted_cdf"))
    found = thresholds.percentile(counted(values), percent)
    assert exact <= found <= exact * 1.002 + 1e-7


@pytest.mark.parametrize("name", NAMES)
def test_mse_finds_the_least_error(name: str) -> None:
    values = drawn(name)
    found = thresholds.mse(counted(values), largest(values))
    least = min(
        quantization_error(values, point)
        for point in np.geomspace(largest(values) / 150, largest(values), 250)
    )
    assert quantization_error(values, found) <= least * 1.02
    assert quantization_error(values, found) <= quantization_error(values, largest(values)) * 1.001


@pytest.mark.parametrize("name", NAMES)
def test_entropy_finds_the_least_divergence(name: str) -> None:
    """The histogram is smooth inside its bins and the values are not: noise of a few hundredths of a nat remains."""
    values = drawn(name)
    found = thresholds.entropy(counted(values), largest(values))
    nonzero = np.abs(values[values != 0])
    points = np.geomspace(np.percentile(nonzero, 90), largest(values), 40)
    divergences = [divergence(values, point) for point in points]
    assert divergence(values, found) <= min(divergences) + 0.005 + 0.02
    assert found <= largest(values)


def test_one_outlier_costs_entropy_nothing_and_a_share_of_them_does() -> None:
    values = drawn("outlier")
    # 2048 cells fixed over the whole range, 128 of them at least, could not go under 300 / 16
    assert thresholds.entropy(counted(values), largest(values)) < 300 / 16 / 2
    many = np.append(values, np.linspace(5, 300, 20_000).astype(np.float32))
    assert thresholds.entropy(counted(many), largest(many)) > 150


def test_scale_of_the_values_is_the_scale_of_the_answer() -> None:
    values = drawn("laplace")
    for choose in (thresholds.mse, thresholds.entropy):
        one, four = (choose(counted(values * f), largest(values * f)) for f in (np.float32(1), np.float32(4)))
        assert four == pytest.approx(4 * one, rel=1e-6)


def test_zeros_do_not_move_the_answer() -> None:
    values = drawn("gaussian")
    padded = np.concatenate([values, np.zeros(500_000, np.float32)])
    for choose in (thresholds.mse, thresholds.entropy):
        assert choose(counted(padded), largest(padded)) == choose(counted(values), largest(values))


def test_histograms_add_up_over_shapes() -> None:
    values = drawn("relu")[:24_000]
    parts = values[:4000].reshape(2, 20, 100), values[4000:4100], values[4100:].reshape(1, -1, 50), values[:0]
    assert (sum(counted(part) for part in parts) == counted(values)).all()


def test_what_is_outside_the_bins_is_counted_at_their_ends() -> None:
    counts = counted(np.array([0.0, -0.0, 1e-30, 1e30], np.float32))
    assert (counts[0], counts[-1], counts.sum()) == (3, 1, 4)
    assert thresholds.percentile(counts, 100) == math.inf  # the caller knows the largest value


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_told(bad: float) -> None:
    assert thresholds.count(np.array([1.0, bad, 2.0], np.float32)) is None


@pytest.mark.parametrize("value", [1e-6, 0.3, 1.0, 4096.0, 2e7])
def test_a_constant_is_its_own_clipping_point(value: float) -> None:
    values = np.full(100, value, np.float32)
    for choose in (thresholds.mse, thresholds.entropy):
        assert choose(counted(values), largest(values)) == pytest.approx(largest(values))
