"""Verified guesses leave the distribution of what is sampled alone: chi-square over many draws."""

from collections.abc import Callable

import numpy as np
import pytest

from quatrain.runtime.sampling import Sampler, SamplingParams

VOCAB, DRAWS = 24, 24_576
NO_HISTORY = np.empty(0, np.int64)
PARAMS = {
    "plain": SamplingParams(seed=1),
    "cold": SamplingParams(temperature=0.6, seed=2),
    "hot": SamplingParams(temperature=1.7, seed=3),
    "top_k": SamplingParams(top_k=5, seed=4),
    "top_p": SamplingParams(top_p=0.8, seed=5),
    "min_p": SamplingParams(min_p=0.1, seed=6),
    "all of them": SamplingParams(temperature=0.8, top_k=12, top_p=0.9, min_p=0.05, seed=7),
}
Draw = Callable[[Sampler, np.ndarray, np.ndarray, np.random.Generator], int]


def make_logits() -> tuple[np.ndarray, np.ndarray]:
    """Of the model, and of a drafter that is right about half of it."""
    rng = np.random.default_rng(0)
    model = rng.normal(size=VOCAB).astype(np.float32) * 1.5
    return model, model * 0.5 + rng.normal(size=VOCAB).astype(np.float32)


def draw_verified(
    sampler: Sampler, model: np.ndarray, drafter: np.ndarray, rng: np.random.Generator
) -> int:
    guess, probs = sampler.propose(drafter, NO_HISTORY)
    return sampler.verify(model, NO_HISTORY, guess, probs)[0]


def draw_with_the_wrong_ratio(
    sampler: Sampler, model: np.ndarray, drafter: np.ndarray, rng: np.random.Generator
) -> int:
    """Accepts with min(1, q/p), the ratio upside down; all else as it should be."""
    guess, q = sampler.propose(drafter, NO_HISTORY)
    p = sampler.distribution(model, NO_HISTORY)
    if rng.random() * p[guess] < q[guess]:
        return guess
    left = np.maximum(p - q, 0)
    return int(rng.choice(VOCAB, p=left / left.sum()))


def draw_without_the_residual(
    sampler: Sampler, model: np.ndarray, drafter: np.ndarray, rng: np.random.Generator
) -> int:
    """Draws a rejected token from p instead of what is left of it."""
    guess, q = sampler.propose(drafter, NO_HISTORY)
    p = sampler.distribution(model, NO_HISTORY)
    if rng.random() * q[guess] < p[guess]:
        return guess
    return int(rng.choice(VOCAB, p=p))


def measure_deviation(params: SamplingParams, draw: Draw) -> float:
    """Chi-square in standard deviations above its mean; impossible tokens count as infinite."""
    model, drafter = make_logits()
    rng = np.random.default_rng(params.seed)
    sampler = Sampler(params, rng)
    expected = sampler.distribution(model, NO_HISTORY) * DRAWS
    other = np.random.default_rng(99)
    tokens = [draw(sampler, model, drafter, other) for _ in range(DRAWS)]
    counts = np.bincount(tokens, minlength=VOCAB)
    possible = expected > 0
    if counts[~possible].any():
        return np.inf
    chi_square = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    freedom = possible.sum() - 1
    return float((chi_square - freedom) / np.sqrt(2 * freedom))


@pytest.mark.parametrize("name", PARAMS)
def test_verified_tokens_have_the_models_distribution(name: str):
    assert measure_deviation(PARAMS[name], draw_verified) < 4


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("draw", [draw_with_the_wrong_ratio, draw_without_the_residual])
def test_the_test_notices_a_wrong_rule(name: str, draw: Draw):
    assert measure_deviation(PARAMS[name], draw) > 10


def test_acceptance_is_what_the_two_have_in_common():
    """The share of guesses that stay is the sum of min(p, q)."""
    model, drafter = make_logits()
    sampler = Sampler(SamplingParams(), np.random.default_rng(0))
    p, q = (sampler.distribution(logits, NO_HISTORY) for logits in (model, drafter))
    accepted = 0
    for _ in range(DRAWS):
        guess, probs = sampler.propose(drafter, NO_HISTORY)
        accepted += sampler.verify(model, NO_HISTORY, guess, probs)[1]
    assert accepted / DRAWS == pytest.approx(np.minimum(p, q).sum(), abs=0.015)


def test_greedy_takes_the_models_token():
    model, drafter = make_logits()
    sampler = Sampler(SamplingParams(temperature=0.0), np.random.default_rng(0))
    guess, probs = sampler.propose(drafter, NO_HISTORY)
    assert (guess, probs) == (int(drafter.argmax()), None)
    best = int(model.argmax())
    assert sampler.verify(model, NO_HISTORY, best, None) == (best, True)
    assert sampler.verify(model, NO_HISTORY, best - 1, None) == (best, False)


def test_equal_distributions_accept_everything():
    model, _ = make_logits()
    sampler = Sampler(SamplingParams(), np.random.default_rng(0))
    for _ in range(500):
        guess, probs = sampler.propose(model, NO_HISTORY)
        assert sampler.verify(model, NO_HISTORY, guess, probs) == (guess, True)
