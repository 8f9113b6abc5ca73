"""Routing policies."""

import numpy as np
import pytest

from quatrain.runtime.decoding import ArgmaxRouting, ForcedRouting, SampleRouting


def logprobs(exit_probability: float) -> np.ndarray:
    return np.log([1 - exit_probability, exit_probability]).astype(np.float32)


@pytest.mark.parametrize(("probability", "leaves"), [(0.51, True), (0.5, False), (0.49, False)])
def test_argmax_exits_where_that_is_strictly_likelier(probability: float, leaves: bool) -> None:
    assert ArgmaxRouting().decide(0, logprobs(probability)) is leaves


def test_sample_exits_with_the_probability_of_the_router() -> None:
    routing = SampleRouting(np.random.default_rng(1))
    count = sum(routing.decide(0, logprobs(0.3)) for _ in range(4000))
    assert abs(count / 4000 - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 4000)


def test_sample_draws_once_a_decision() -> None:
    routing = SampleRouting(np.random.default_rng(7))
    draws = np.random.default_rng(7).random(50)
    assert [routing.decide(0, logprobs(0.4)) for _ in range(50)] == [d < 0.4 for d in draws]


def test_certainty_is_certain() -> None:
    routing = SampleRouting(np.random.default_rng(0))
    assert all(routing.decide(0, np.array([-np.inf, 0], np.float32)) for _ in range(20))
    assert not any(routing.decide(0, np.array([0, -np.inf], np.float32)) for _ in range(20))


def test_forced_takes_its_exit_whatever_the_router_says() -> None:
    routing = ForcedRouting(1)
    assert [routing.decide(k, logprobs(0.99)) for k in range(3)] == [False, True, True]
