from __future__ import annotations

import math

import numpy as np
import pytest

from svtool.sqnr import Sqnr, sqnr_db


def test_known_values() -> None:
    signal = np.full((4, 5), 2.0, dtype=np.float32)
    assert sqnr_db(signal, signal + np.float32(0.02)) == pytest.approx(40.0, abs=1e-3)
    assert sqnr_db(signal, signal) == math.inf
    assert sqnr_db(np.zeros((2, 3), dtype=np.float32), np.ones((2, 3), dtype=np.float32)) == -math.inf
    assert sqnr_db(np.empty((0, 3), dtype=np.float32), np.empty((0, 3), dtype=np.float32)) is None


def test_not_finite_is_the_worst_there_is() -> None:
    good, bad = np.ones((2, 3), dtype=np.float32), np.full((2, 3), np.nan, dtype=np.float32)
    assert sqnr_db(good, bad) == -math.inf


def test_batches_streamed_equal_the_whole_and_padding_is_ignored() -> None:
    generator = np.random.default_rng(0)
    reference = generator.normal(size=(3, 7, 11)).astype(np.float32)
    test = reference + generator.normal(scale=0.01, size=reference.shape).astype(np.float32)
    lengths = np.array([7, 2, 0])
    test[1, 2:], test[2] = 1e6, np.nan
    running = Sqnr()
    running.add(reference[:1], test[:1], lengths[:1])
    running.add(reference[1:], test[1:], lengths[1:])
    whole = sqnr_db(np.concatenate([reference[0], reference[1, :2]]), np.concatenate([test[0], test[1, :2]]))
    assert running.db == pytest.approx(whole)
    assert running.frames == 9


def test_shapes_must_match() -> None:
    with pytest.raises(ValueError, match="shapes"):
        sqnr_db(np.ones((2, 3)), np.ones((3, 3)))


def test_half_precision_is_summed_in_double() -> None:
    loud = np.full((10, 10), 60000.0, dtype=np.float16)
    assert sqnr_db(loud, loud * np.float16(0.99)) == pytest.approx(40.0, abs=0.5)
