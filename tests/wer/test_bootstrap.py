from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from svtool.wer.score import Interval, paired_bootstrap, rate_interval, utterances_to_decide

COVERAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "coverage.json"


def simulated(
    generator: np.random.Generator, utterances: int, worse: float, better: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Errors of both sides and tokens, i64[N] each; true drift = worse - better per token."""
    tokens = generator.integers(3, 13, utterances)
    baseline = generator.binomial(tokens, 0.05)
    gained, lost = generator.binomial(tokens, worse), generator.binomial(tokens, better)
    return baseline, baseline + gained - np.minimum(lost, baseline + gained), tokens


def test_identical_engines_have_exactly_no_drift() -> None:
    errors, tokens = [0, 3, 1, 0] * 50, [4, 6, 5, 0] * 50
    drift = paired_bootstrap(errors, errors, tokens)
    assert drift is not None
    assert (drift.low, drift.high, drift.exceeds) == (0.0, 0.0, 0.0)


def test_a_constant_drift_is_found_exactly() -> None:
    drift = paired_bootstrap([0] * 300, [1] * 300, [10] * 300, budget=0.5)
    assert drift is not None
    assert (drift.low, drift.high, drift.exceeds) == (10.0, 10.0, 1.0)


def test_equal_to_drawing_utterances_one_by_one() -> None:
    generator = np.random.default_rng(3)
    baseline, candidate, tokens = simulated(generator, 400, 0.02, 0.01)
    drawn = generator.integers(0, 400, size=(4000, 400))
    slow = 100.0 * (candidate - baseline)[drawn].sum(axis=1) / tokens[drawn].sum(axis=1)
    fast = paired_bootstrap(baseline, candidate, tokens, resamples=4000)
    assert fast is not None
    assert fast.low == pytest.approx(np.quantile(slow, 0.025), abs=0.1)
    assert fast.high == pytest.approx(np.quantile(slow, 0.975), abs=0.1)
    assert fast.exceeds == pytest.approx((slow > 0.5).mean(), abs=0.06)


def test_seeded() -> None:
    sides = simulated(np.random.default_rng(0), 300, 0.02, 0.01)
    assert paired_bootstrap(*sides, seed=5) == paired_bootstrap(*sides, seed=5)
    assert paired_bootstrap(*sides, seed=5) != paired_bootstrap(*sides, seed=6)


@pytest.mark.parametrize(("worse", "better"), [(0.01, 0.01), (0.02, 0.0)])
def test_covers_the_truth(worse: float, better: float) -> None:
    """95 % is meant; the standard error of 150 sets is 1.8 %, so chance stays within these bounds.

    `benchmarks/coverage.py` does this at length and in more kinds of sets.
    """
    generator = np.random.default_rng(11)
    truth = 100.0 * (worse * 0.95 - better)
    covered = 0
    for number in range(150):
        tokens = generator.integers(3, 13, 500)
        baseline = generator.binomial(tokens, 0.05)
        gained, lost = (
            generator.binomial(tokens - baseline, worse),
            generator.binomial(baseline, better / 0.05),
        )
        drift = paired_bootstrap(baseline, baseline + gained - lost, tokens, seed=number)
        assert drift is not None
        covered += drift.low <= truth <= drift.high
    assert 0.9 <= covered / 150 <= 0.995


def test_the_committed_coverage_is_what_reports_promise() -> None:
    document = json.loads(COVERAGE.read_text(encoding="utf-8"))
    promised = [row for row in document["rows"] if row["promised"]]
    assert len(promised) >= 6
    for row in promised:
        assert row["sets"] >= 1000
        assert row["utterances"] >= 500
        assert 92.0 <= row["covered_percent"] <= 97.0, row["name"]


@pytest.mark.case("W1")
def test_without_reference_tokens_there_is_no_interval() -> None:
    assert paired_bootstrap([0, 1], [1, 1], [0, 0]) is None
    assert rate_interval([0, 1], [0, 0]) is None
    mostly_empty = paired_bootstrap([0, 1, 0], [1, 1, 0], [0, 0, 3])
    assert mostly_empty is not None
    assert np.isfinite([mostly_empty.low, mostly_empty.high]).all()


def test_memory_does_not_grow_with_the_list() -> None:
    """100,000 utterances x 2000 resamples would be 1.6 GB as indices."""
    import tracemalloc

    sides = simulated(np.random.default_rng(0), 100_000, 0.02, 0.01)
    tracemalloc.start()
    paired_bootstrap(*sides)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 60e6


def test_more_utterances_are_extrapolated_from_the_half_width() -> None:
    assert utterances_to_decide(100, 0.0, Interval(-1.0, 1.0), 0.5) == 300
    assert utterances_to_decide(100, 1.0, Interval(0.0, 2.0), 0.5) == 300
    assert utterances_to_decide(100, 0.5, Interval(0.0, 1.0), 0.5) is None


def test_rate_interval_holds_the_rate() -> None:
    interval = rate_interval([1, 0, 0, 0] * 100, [5] * 400)
    assert interval is not None
    assert interval.low < 0.05 < interval.high
