"""The dynamics and the gradients of their roll-outs, against finite differences."""

import numpy as np
import pytest

from quatrain.exporter.drafting.dynamics import WEIGHT_NAMES, begin_weights, guess_next
from quatrain.exporter.drafting.roll_out import roll_out, take_loss

HIDDEN, INNER, BATCH = 5, 7, 3
RNG = np.random.default_rng(2)
HEAD = RNG.standard_normal((9, HIDDEN))


def make_weights() -> dict[str, np.ndarray]:
    weights = begin_weights(HIDDEN, INNER, np.random.default_rng(0))
    weights["down"] = RNG.standard_normal((HIDDEN, INNER))
    return {name: weight.astype(np.float64) for name, weight in weights.items()}


def test_one_step_is_the_formula() -> None:
    weights = make_weights()
    h, e = RNG.standard_normal((2, BATCH, HIDDEN))
    for row in range(BATCH):
        g = (weights["w_h"] @ h[row]) / (1 + np.exp(-weights["w_e"] @ e[row]))
        gate = weights["gate"] @ g
        product = gate / (1 + np.exp(-gate)) * (weights["up"] @ g)
        expected = h[row] + weights["down"] @ product
        assert np.allclose(guess_next(weights, h, e).next_states[row], expected)


def test_large_numbers_warn_of_nothing() -> None:
    weights = {name: weight * 1e4 for name, weight in make_weights().items()}
    h, e = RNG.standard_normal((2, BATCH, HIDDEN))
    with np.errstate(invalid="raise"):
        assert np.isfinite(guess_next(weights, h, e).next_states).all()


@pytest.mark.parametrize("num_steps", [1, 3])
@pytest.mark.parametrize("name", WEIGHT_NAMES)
def test_gradients_are_those_of_finite_differences(name: str, num_steps: int) -> None:
    weights = make_weights()
    # Errors on both sides of 1, where SmoothL1 changes from a square to a line.
    states = RNG.standard_normal((BATCH, num_steps + 1, HIDDEN)) * 1.5
    embeddings = RNG.standard_normal((BATCH, num_steps, HIDDEN))
    _, gradients = take_loss(weights, states, embeddings, HEAD)
    small = 1e-6
    for at in np.ndindex(*weights[name].shape):
        losses = []
        for change in (small, -small):
            changed = {**weights, name: weights[name].copy()}
            changed[name][at] += change
            losses.append(take_loss(changed, states, embeddings, HEAD)[0])
        expected = (losses[0] - losses[1]) / (2 * small)
        assert gradients[name][at] == pytest.approx(expected, rel=1e-5, abs=1e-8)


def test_the_loss_is_smooth_l1_and_a_little_divergence() -> None:
    weights = make_weights()
    states = RNG.standard_normal((BATCH, 3, HIDDEN)) * 1.5
    embeddings = RNG.standard_normal((BATCH, 2, HIDDEN))
    steps = roll_out(weights, states[:, 0], embeddings)
    error = np.abs(np.stack([step.next_states for step in steps], axis=1) - states[:, 1:])
    assert (error < 1).any() and (error > 1).any()
    expected = np.where(error < 1, error**2 / 2, error - 0.5).mean()
    for k, step in enumerate(steps):
        exps = [np.exp(rows @ HEAD.T) for rows in (states[:, k + 1], step.next_states)]
        p, q = (e / e.sum(axis=1, keepdims=True) for e in exps)
        expected += 0.03 * (p * np.log(p / q)).sum(axis=1).mean() / 2
    assert take_loss(weights, states, embeddings, HEAD)[0] == pytest.approx(expected)
    # Each step goes on from the guess before it, not from the true state.
    assert np.array_equal(steps[1].states, steps[0].next_states)
