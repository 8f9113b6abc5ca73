"""Batches: every run once in an epoch, the same whenever they are asked for."""

import numpy as np

from quatrain.exporter.drafting.batches import Batches


def test_every_epoch_has_all_runs_in_an_order_of_its_own() -> None:
    batches = Batches(10, 4, 0)
    picked = np.concatenate([batches.pick(step) for step in range(5)])
    first, second = picked[:10], picked[10:]
    assert sorted(first) == sorted(second) == list(range(10))
    assert first.tolist() != second.tolist()


def test_a_step_is_the_same_whatever_was_asked_before() -> None:
    batches = Batches(10, 4, 0)
    steps = [batches.pick(step) for step in range(6)]
    for step in (5, 2, 0):
        assert np.array_equal(Batches(10, 4, 0).pick(step), steps[step])
    assert not np.array_equal(Batches(10, 4, 1).pick(0), steps[0])


def test_a_batch_may_be_longer_than_the_text() -> None:
    assert sorted(Batches(3, 7, 0).pick(0)) in (sorted([0, 1, 2] * 2 + [last]) for last in range(3))
