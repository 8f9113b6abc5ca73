"""What the measurements mean, on numbers small enough to count by hand."""

import numpy as np
import pytest

from quatrain.exporter.sparsification.quality import QualityMeter, select_channels


def test_the_largest_of_each_bank_are_selected() -> None:
    scores = np.array([[3, 1, 2, 0, -5, -2, -3, -4]], np.float32)
    assert select_channels(scores, 4, 2).tolist() == [
        [True, False, True, False, False, True, True, False]
    ]
    assert select_channels(scores, 4, 4).all()


def test_shares_and_explained_variance() -> None:
    u = np.array([[4, 3, 2, 1]], np.float32)
    v = np.array([[0, 1, 1, 0]], np.float32)  # the largest activations are channels 1 and 2
    p = np.array([[4, 0, 2, 1]], np.float32)  # chooses 0 and 2
    meter = QualityMeter(7, 4, 2)
    meter.add(u, v, p)
    found = meter.result()
    assert found.layer == 7
    assert found.explained_variance == 1 - 9 / 30
    assert found.gate_share == 0.5  # 0 of 0 and 1
    assert found.activation_share == 0.5  # 2 of 1 and 2
    assert found.activation_ceiling == 0.5
    silu = u / (1 + np.exp(-u)) * v
    assert found.energy_share == pytest.approx(silu[0, 2] ** 2 / (silu**2).sum())
    assert found.energy_ceiling == 1
    meter.add(u, v, u)
    assert meter.result().gate_share == 0.75
