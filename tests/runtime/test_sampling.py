"""SamplingParams refuses what cannot be served; Sampler draws from the distribution it states."""

import math
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers.generation import logits_process as hf

from quatrain.runtime.errors import BundleError, RequestError
from quatrain.runtime.sampling import Sampler, SamplingParams

NO_HISTORY = np.zeros(0, dtype=np.int64)


def make_sampler(**params: Any) -> Sampler:
    return Sampler(SamplingParams(**params), np.random.default_rng(params.get("seed", 0)))


def draw_logits(size: int = 200, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 3, size).astype(np.float32)


# --- parameters ---


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("temperature", value) for value in (-0.1, math.nan, math.inf, True, "1", None, 10**400)],
        *[("top_p", value) for value in (0, -1, 1.01, math.nan, False, "0.9", None)],
        *[("min_p", value) for value in (-0.01, 1.5, math.nan, True, "x")],
        *[("repetition_penalty", value) for value in (0, -2, math.nan, math.inf, True)],
        *[("top_k", value) for value in (-1, 1.0, True, "5", None)],
        *[("max_tokens", value) for value in (-1, 2.5, True, "9", None)],
        *[("seed", value) for value in (-1, 1.5, True, "7")],
        *[("stop", value) for value in ("", ["a", ""], [1], 5, b"x", None, {"a": 1})],
        *[("stop_token_ids", value) for value in ("12", [-1], [1.5], [True], 3, None)],
        *[("ignore_eos", value) for value in (1, "yes", None)],
        *[("routing", value) for value in ("greedy", -1, 1.5, True, "")],
    ],
)
def test_impossible_value_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert name in caught.value.asked and caught.value.found and name in caught.value.fix


def test_unknown_keyword_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="top_q"):
        SamplingParams(top_q=3)  # type: ignore[call-arg]


def test_values_are_normalised_and_frozen() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5), top_k=np.int64(3), stop="END", stop_token_ids=[np.int64(4)]
    )
    assert params.stop == ("END",) and params.stop_token_ids == (4,)
    assert type(params.temperature) is float and type(params.top_k) is int
    assert hash(params) == hash(SamplingParams(0.5, 3, stop=["END"], stop_token_ids=(4,)))
    with pytest.raises(AttributeError):
        params.top_k = 1  # type: ignore[misc]


def test_routing_follows_the_temperature_unless_given() -> None:
    assert SamplingParams().chosen_routing == "sample"
    assert SamplingParams(temperature=0).chosen_routing == "argmax"
    assert SamplingParams(temperature=0, routing="sample").chosen_routing == "sample"
    assert SamplingParams(routing=0).chosen_routing == 0


# --- distribution ---


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.7},
        {"temperature": 3.0, "top_k": 7},
        {"top_p": 0.9},
        {"top_p": 0.05},
        {"min_p": 0.1},
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.8, "temperature": 1.5},
        {
            "repetition_penalty": 1.2,
            "temperature": 1.4,
            "top_k": 50,
            "top_p": 0.95,
            "min_p": 0.02,
        },
    ],
)
def test_distribution_equals_transformers(params: dict[str, Any]) -> None:
    logits = draw_logits()
    history = np.array([3, 17, 3, int(logits.argmax()), int(logits.argmin())])
    scores = torch.from_numpy(logits).double()[None]
    ids = torch.from_numpy(history)[None]
    steps: list[hf.LogitsProcessor] = []
    if "repetition_penalty" in params:
        steps.append(hf.RepetitionPenaltyLogitsProcessor(params["repetition_penalty"]))
    steps.append(hf.TemperatureLogitsWarper(float(params.get("temperature", 1.0))))
    if "top_k" in params:
        steps.append(hf.TopKLogitsWarper(params["top_k"]))
    if "top_p" in params:
        steps.append(hf.TopPLogitsWarper(params["top_p"]))
    if "min_p" in params:
        steps.append(hf.MinPLogitsWarper(params["min_p"]))
    for step in steps:
        scores = step(ids, scores)
    expected = scores.softmax(-1)[0].numpy()
    ours = make_sampler(**params).distribution(logits, history)
    assert ours.dtype == np.float64
    np.testing.assert_allclose(ours, expected, atol=1e-12)
    assert ((ours > 0) == (expected > 0)).all()


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 3000),
    seed=st.integers(0, 99),
    temperature=st.sampled_from([1e-300, 0.01, 0.5, 1.0, 1e6, 1e300]),
    top_k=st.sampled_from([0, 1, 5, 10**9]),
    top_p=st.sampled_from([1e-9, 0.3, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.2, 1.0]),
    levels=st.sampled_from([1, 3, 10**6]),
)
def test_filters_keep_what_they_promise(
    size: int, seed: int, temperature: float, top_k: int, top_p: float, min_p: float, levels: int
) -> None:
    """Against a plain sort, ties (few `levels`) included; the draw only hits what is kept."""
    logits = draw_logits(size, seed)
    logits = np.round(logits * levels / 10).astype(np.float32)
    sampler = make_sampler(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    probs = sampler.distribution(logits, NO_HISTORY)
    with np.errstate(over="ignore"):
        weights = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    order = np.argsort(-logits, kind="stable")[: top_k or None]
    if top_p < 1:
        order = order[np.argsort(-weights[order], kind="stable")]
        mass = np.cumsum(weights[order])
        order = order[: int(np.searchsorted(mass, top_p * mass[-1])) + 1]
    order = order[weights[order] >= min_p]
    # A sum in another order may round to the other side of top_p: then one token differs.
    if top_p == 1:
        assert set(np.flatnonzero(probs)) == set(order[weights[order] > 0])
    else:
        assert abs(np.count_nonzero(probs) - np.count_nonzero(weights[order])) <= 1
    assert probs.sum() == pytest.approx(1)
    assert all(probs[sampler.pick(logits, NO_HISTORY)] > 0 for _ in range(3))


def test_draws_follow_the_distribution() -> None:
    """Chi-square over 20 000 draws: below the 99.9 % point of its distribution."""
    logits = draw_logits(40, seed=5) / 2
    sampler = make_sampler(temperature=0.9, top_k=30, seed=11)
    probs = sampler.distribution(logits, NO_HISTORY)
    counts = np.bincount([sampler.pick(logits, NO_HISTORY) for _ in range(20_000)], minlength=40)
    assert counts[probs == 0].sum() == 0
    kept = probs > 0
    expected = probs[kept] * 20_000
    statistic = ((counts[kept] - expected) ** 2 / expected).sum()
    degrees = kept.sum() - 1
    # Wilson and Hilferty's approximation of the chi-square quantile, z = 3.09.
    assert statistic < degrees * (1 - 2 / (9 * degrees) + 3.09 * (2 / (9 * degrees)) ** 0.5) ** 3


def test_greedy_takes_the_lowest_id_of_equals_and_draws_nothing() -> None:
    logits = np.array([1, 5, 5, 0], dtype=np.float32)
    rng = np.random.default_rng(0)
    sampler = Sampler(SamplingParams(temperature=0), rng)
    assert sampler.pick(logits, NO_HISTORY) == 1
    assert sampler.distribution(logits, NO_HISTORY).tolist() == [0, 1, 0, 0]
    assert rng.random() == np.random.default_rng(0).random()
    assert make_sampler(top_k=1).pick(logits, NO_HISTORY) == 1
    assert make_sampler(top_p=1e-9).pick(logits, NO_HISTORY) == 1


def test_repetition_penalty_counts_in_greedy_and_leaves_the_logits_alone() -> None:
    logits = np.array([4, 5, -1], dtype=np.float32)
    sampler = make_sampler(temperature=0, repetition_penalty=2.0)
    assert sampler.pick(logits, np.array([1, 1])) == 0
    assert sampler.pick(logits, np.array([2])) == 1
    assert logits.tolist() == [4, 5, -1]


def test_masked_logits_are_never_drawn() -> None:
    logits = np.full(50, -np.inf, dtype=np.float32)
    logits[[3, 30]] = 0
    sampler = make_sampler(repetition_penalty=1.5)
    assert {sampler.pick(logits, np.array([3, 4])) for _ in range(50)} == {3, 30}


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_k": 2, "repetition_penalty": 2}])
@pytest.mark.parametrize("bad", [[1, np.nan, 2], [np.inf, 0, 0], [-np.inf] * 3])
def test_nan_and_inf_of_the_model_are_named(params: dict[str, Any], bad: list[float]) -> None:
    with pytest.raises(BundleError, match=r"the model produced (nan|-?inf)"):
        make_sampler(**params).pick(np.array(bad, dtype=np.float32), np.array([0]))


def test_same_seed_same_draws() -> None:
    logits = draw_logits(500)
    picks = [[make_sampler(seed=s).pick(logits, NO_HISTORY) for _ in "ab"] for s in range(20)]
    assert all(first == second for first, second in picks)
    assert len({first for first, _ in picks}) > 5


def test_greedy_is_fast() -> None:
    logits = draw_logits(49152)
    sampler = make_sampler(temperature=0)
    best = min(_time(sampler, logits) for _ in range(50))
    assert best < 100e-6


def _time(sampler: Sampler, logits: NDArray[np.float32]) -> float:
    start = time.perf_counter()
    sampler.pick(logits, NO_HISTORY)
    return time.perf_counter() - start
