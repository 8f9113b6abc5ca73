"""Scores of whole sequences against what the reference computed."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from quatrain.runtime.decoding import score_exits, score_tokens, scoring
from quatrain.runtime.errors import RequestError
from quatrain.runtime.session import Model

TOLERANCE = 1e-4  # of the largest magnitude, in fp32

Golden = dict[str, NDArray[np.generic]]


def assert_close(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("chunk", [1, 7, 256])
def test_scores_are_golden(
    nvium: Model, golden: Golden, limit: Callable[..., Model], chunk: int
) -> None:
    model = limit(nvium, prefill_chunk=chunk)
    scores = score_exits(model, golden["input_ids"])
    assert_close(scores.exit_logits, golden["exit_logits"])
    assert_close(np.exp(scores.exit_logprobs), golden["exit_prob"])
    assert_close(score_tokens(model, golden["input_ids"]), golden["mix_logprobs"])


def test_exit_probabilities_follow_the_routers(nvium: Model, golden: Golden) -> None:
    """The routers' own probabilities, out of the products that score_exits gives."""
    logprobs = score_exits(nvium, golden["input_ids"]).exit_logprobs.astype(np.float64)
    reached = 1 - np.cumsum(np.exp(logprobs), axis=0) + np.exp(logprobs)
    assert np.allclose(np.exp(logprobs[:-1]) / reached[:-1], golden["router_exit_prob"], atol=1e-4)
    assert np.allclose(np.exp(logprobs).sum(0), 1, atol=1e-5)


def test_the_mixture_is_normalized(nvium: Model, golden: Golden) -> None:
    mixture = score_tokens(nvium, golden["input_ids"])
    assert np.allclose(np.exp(mixture).sum(-1), 1, atol=1e-4)


def test_memory_bounds_the_chunk(dense: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = np.arange(40).reshape(2, 20)
    whole = score_tokens(dense, ids)
    monkeypatch.setattr(scoring, "CHUNK_BYTES", 1)
    assert_close(score_tokens(dense, ids), whole)


def test_log_space_sum_survives_what_underflows() -> None:
    a = np.array([-200.0, -1000.0, -1.0], np.float32)
    b = np.array([-201.0, -20.0, -1.0], np.float32)
    expected = np.logaddexp(a.astype(np.float64), b.astype(np.float64))
    assert np.allclose(scoring._add_in_log_space(a.copy(), b), expected, rtol=1e-6)


@pytest.mark.parametrize("ids", [[1, 2], [[]], [[0.5]]])
def test_only_a_batch_of_ids_is_scored(dense: Model, ids: list[object]) -> None:
    with pytest.raises(RequestError, match="the scores of a batch of sequences"):
        score_tokens(dense, np.array(ids))


def test_exits_of_a_dense_model_are_refused(dense: Model) -> None:
    with pytest.raises(RequestError, match="a model without"):
        score_exits(dense, np.array([[1]]))
