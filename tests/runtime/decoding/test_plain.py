"""Plain decoding: any split into calls gives what one pass over the sequence gives."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from quatrain.runtime.decoding import PlainDecoder, make_decoder, score_tokens
from quatrain.runtime.errors import RequestError
from quatrain.runtime.session import Model

TOLERANCE = 1e-4  # of the largest magnitude, in fp32
LENGTH = 103


@pytest.fixture(scope="module")
def ids(dense: Model) -> NDArray[np.int64]:
    """Three full sequences."""
    return np.random.default_rng(2).integers(0, dense.manifest.vocab_size, (3, LENGTH))


@pytest.fixture(scope="module")
def expected(dense: Model, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """Their logits in one pass, itself held against transformers by the exporter's tests."""
    return score_tokens(dense, ids)


def assert_close(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    history=st.lists(
        st.tuples(*[st.sampled_from([0, 0, 1, 1, 1, 2, 7, 40, LENGTH])] * 3),
        min_size=1,
        max_size=20,
    ),
    chunk=st.sampled_from([1, 3, 16, 512]),
)
def test_whatever_was_fed_before_the_logits_are_the_same(
    dense: Model,
    ids: NDArray[np.int64],
    expected: NDArray[np.float32],
    limit: Callable[..., Model],
    history: list[tuple[int, ...]],
    chunk: int,
) -> None:
    """Unequal rows, idle rows, chunks, and a row that is full while others go on."""
    decoder = PlainDecoder(limit(dense, prefill_chunk=chunk), 3)
    lengths = [0, 0, 0]
    for counts in history:
        ends = [min(n + count, LENGTH) for n, count in zip(lengths, counts, strict=True)]
        out = decoder.feed([ids[b, lengths[b] : ends[b]].tolist() for b in range(3)])
        assert out.exits is None
        for b, end in enumerate(ends):
            if end > lengths[b]:
                assert_close(out.logits[b], expected[b, end - 1])
        lengths = ends
        assert decoder.lengths.tolist() == lengths
    decoder.flush()
    assert decoder.lengths.tolist() == lengths


def test_a_batch_generates_what_each_row_does_alone(dense: Model) -> None:
    prompts = [[3, 1, 4, 1, 5, 9, 2, 6], [5], list(range(40))]

    def generate(rows: list[list[int]]) -> list[list[int]]:
        decoder = make_decoder(dense, len(rows))
        out = decoder.feed(rows)
        tokens = [out.logits.argmax(-1).tolist()]
        for _ in range(50):
            out = decoder.feed([[token] for token in tokens[-1]])
            tokens.append(out.logits.argmax(-1).tolist())
        return [list(row) for row in zip(*tokens, strict=True)]

    assert generate(prompts) == [generate([prompt])[0] for prompt in prompts]


def test_two_decoders_of_one_model_do_not_mix(
    dense: Model, ids: NDArray[np.int64], expected: NDArray[np.float32]
) -> None:
    decoders = [PlainDecoder(dense, 1) for _ in range(2)]
    for t in range(10):
        for b, decoder in enumerate(decoders):
            out = decoder.feed([ids[b, t : t + 1].tolist()])
            assert_close(out.logits[0], expected[b, t])


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        ([[61]], "the token id 61"),
        ([[4, -1]], "the token id -1"),
        ([[1] * 104], "a sequence of 104 tokens"),
        ([[1], [1]], "tokens for 2 sequences"),
    ],
)
def test_a_bad_feed_is_refused(dense: Model, tokens: list[list[int]], found: str) -> None:
    decoder = PlainDecoder(dense, 1)
    with pytest.raises(RequestError, match=found):
        decoder.feed(tokens)
    assert decoder.lengths.tolist() == [0]


def test_feeding_nothing_is_harmless(dense: Model) -> None:
    decoder = PlainDecoder(dense, 2)
    decoder.feed([[], []])
    assert decoder.lengths.tolist() == [0, 0]
