"""Adam against its formula, and the course of the learning rate."""

import numpy as np
import pytest

from quatrain.exporter.drafting.adam import Adam, choose_rate


def test_steps_are_those_of_the_formula() -> None:
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((3, 4)).astype(np.float32)}
    expected = weights["w"].astype(np.float64)
    adam = Adam(weights)
    first = second = np.zeros((3, 4))
    for step in range(5):
        gradient = rng.standard_normal((3, 4)).astype(np.float32)
        first = 0.9 * first + 0.1 * gradient
        second = 0.99 * second + 0.01 * gradient.astype(np.float64) ** 2
        corrected = first / (1 - 0.9 ** (step + 1)), second / (1 - 0.99 ** (step + 1))
        expected = expected - 0.01 * corrected[0] / (np.sqrt(corrected[1]) + 1e-8)
        adam.update({"w": gradient}, 0.01, step)
    assert np.allclose(weights["w"], expected, atol=1e-5)


def test_the_rate_rises_and_falls() -> None:
    rates = [choose_rate(2.0, step, 200) for step in range(200)]
    assert rates[0] == pytest.approx(0.2)
    assert max(rates) == rates[9] == pytest.approx(2, rel=0.01)
    assert rates == sorted(rates[:10]) + sorted(rates[10:], reverse=True)
    assert 0 < rates[-1] < 1e-3
    assert choose_rate(2.0, 0, 1) == 2
