"""Piggyback decoding against what the reference computed for the golden model."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from quatrain.runtime.decoding import ArgmaxRouting, ForcedRouting, PiggybackDecoder
from quatrain.runtime.errors import RequestError
from quatrain.runtime.onnxruntime_session import _BoundGraph
from quatrain.runtime.session import Model, Sizes

TOLERANCE = 1e-4  # of the largest magnitude, in fp32
NUM_EXITS = 4
LENGTH = 48

Golden = dict[str, NDArray[np.generic]]


def generate(
    decoder: PiggybackDecoder, prompts: Sequence[Sequence[int]], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Greedy tokens and their exits, [B, count]; the last token is not fed."""
    out = decoder.feed(prompts)
    tokens, exits = [out.logits.argmax(-1)], [out.exits]
    while len(tokens) < count:
        out = decoder.feed([[int(token)] for token in tokens[-1]])
        tokens.append(out.logits.argmax(-1))
        exits.append(out.exits)
    return np.stack(tokens, 1), np.stack(exits, 1)


def assert_golden_logits(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


def assert_same_cache(
    decoder: PiggybackDecoder, model: Model, ids: Sequence[Sequence[int]]
) -> None:
    """The cache is what one pass of full depth over the same tokens leaves."""
    other = PiggybackDecoder(model, len(ids), [ForcedRouting(NUM_EXITS - 1)] * len(ids))
    other.feed(ids)
    other.flush()
    for name, tensor in decoder.cache.tensors.items():
        expected = other.cache.tensors[name].array
        for b, row in enumerate(ids):
            difference = tensor.array[b, :, : len(row)] - expected[b, :, : len(row)]
            assert np.abs(difference).max(initial=0) <= TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("chunk", [1, 3, 256])
@pytest.mark.parametrize("max_deferred", [0, 1, 2, 7, None])
def test_greedy_tokens_and_exits_are_golden(
    nvium: Model,
    golden: Golden,
    limit: Callable[..., Model],
    max_deferred: int | None,
    chunk: int,
) -> None:
    model = limit(nvium, prefill_chunk=chunk)
    decoder = PiggybackDecoder(model, 1, [ArgmaxRouting()], max_deferred)
    tokens, exits = generate(decoder, golden["prompt_ids"].tolist(), 64)
    assert tokens[0].tolist() == golden["generated_ids"].tolist()
    assert exits[0].tolist() == golden["generated_exit"].tolist()
    # The second turn: the last token generated was not fed yet.
    turn = [int(tokens[0, -1]), *golden["turn2_prompt_ids"][0].tolist()]
    tokens, exits = generate(decoder, [turn], 16)
    assert tokens[0].tolist() == golden["turn2_generated_ids"].tolist()
    assert exits[0].tolist() == golden["turn2_generated_exit"].tolist()


@pytest.mark.parametrize("max_deferred", [1, 2, 7, None])
def test_a_row_of_a_batch_gives_what_it_gives_alone(
    nvium: Model, golden: Golden, max_deferred: int | None
) -> None:
    prompts = [golden["input_ids"][0, :31].tolist(), golden["prompt_ids"][0].tolist(), [17]]
    decoder = PiggybackDecoder(nvium, 3, [ArgmaxRouting()] * 3, max_deferred)
    tokens, exits = generate(decoder, prompts, 64)
    assert tokens[1].tolist() == golden["generated_ids"].tolist()
    assert exits[1].tolist() == golden["generated_exit"].tolist()
    for b in (0, 2):
        alone = PiggybackDecoder(nvium, 1, [ArgmaxRouting()], None)
        own_tokens, own_exits = generate(alone, [prompts[b]], 64)
        assert tokens[b].tolist() == own_tokens[0].tolist()
        assert exits[b].tolist() == own_exits[0].tolist()


@pytest.mark.parametrize("exit_index", range(NUM_EXITS))
def test_a_forced_exit_gives_its_logits(nvium: Model, golden: Golden, exit_index: int) -> None:
    """From a one-token prompt on, so with exit 0 every position of every step is deferred."""
    decoder = PiggybackDecoder(nvium, 2, [ForcedRouting(exit_index)] * 2)
    for t in range(LENGTH):
        out = decoder.feed(golden["input_ids"][:, t : t + 1].tolist())
        assert out.exits.tolist() == [exit_index] * 2
        assert_golden_logits(out.logits, golden["exit_logits"][exit_index, :, t])
    expected = 0 if exit_index == NUM_EXITS - 1 else LENGTH
    assert decoder.num_deferred.tolist() == [expected] * 2
    decoder.flush()
    assert decoder.num_deferred.tolist() == [0, 0]
    assert_same_cache(decoder, nvium, golden["input_ids"].tolist())


class ScriptedRouting:
    """Takes the exit that the test wrote down for the next token."""

    next_exit = 0

    def decide(self, exit_index: int, router_logprobs: NDArray[np.float32]) -> bool:
        assert np.isclose(np.exp(router_logprobs).sum(), 1, atol=1e-5)
        return exit_index == self.next_exit


@st.composite
def histories(draw: st.DrawFn) -> list[list[tuple[int, int]]]:
    """For each call of `feed`, and each of two rows: how many tokens, and the exit to take.

    Lengths lean to 0, 1 and few, and a row ends where its golden sequence does.
    """
    counts = st.sampled_from([0, 1, 1, 1, 1, 2, 3, 9])
    steps = draw(
        st.lists(
            st.lists(st.tuples(counts, st.integers(0, NUM_EXITS - 1)), min_size=2, max_size=2),
            min_size=1,
            max_size=30,
        )
    )
    return steps


# Row 1 has much deferred at exit 0 when row 0 runs more rows in segment 2 than in segment 1: what
# is padding for row 1 there must not touch the states it still needs.
UNEVEN = [[(1, 1), (0, 0)]] * 2 + [[(0, 0), (1, 0)]] * 8 + [[(1, 3), (0, 0)], [(0, 0), (1, 3)]]


@example(history=UNEVEN, max_deferred=None, chunk=256, flush_every=100)
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    history=histories(),
    max_deferred=st.sampled_from([0, 1, 2, 5, None]),
    chunk=st.sampled_from([1, 2, 5, 256]),
    flush_every=st.sampled_from([1, 4, 100]),
)
def test_whatever_was_fed_before_the_logits_are_golden(
    nvium: Model,
    golden: Golden,
    limit: Callable[..., Model],
    history: list[list[tuple[int, int]]],
    max_deferred: int | None,
    chunk: int,
    flush_every: int,
) -> None:
    """Any exits, any split into calls, idle rows, chunks, bounds and flushes."""
    ids = golden["input_ids"].tolist()
    routing = [ScriptedRouting(), ScriptedRouting()]
    decoder = PiggybackDecoder(limit(nvium, prefill_chunk=chunk), 2, routing, max_deferred)
    lengths = [0, 0]
    for step, calls in enumerate(history):
        ends = [min(n + count, LENGTH) for n, (count, _) in zip(lengths, calls, strict=True)]
        for policy, (_, exit_index) in zip(routing, calls, strict=True):
            policy.next_exit = exit_index
        out = decoder.feed([ids[b][lengths[b] : ends[b]] for b in range(2)])
        for b, (_, exit_index) in enumerate(calls):
            if ends[b] > lengths[b]:
                assert out.exits[b] == exit_index
                assert_golden_logits(
                    out.logits[b], golden["exit_logits"][exit_index, b, ends[b] - 1]
                )
        lengths = ends
        assert decoder.lengths.tolist() == lengths
        assert max_deferred is None or max(decoder.num_deferred) <= max_deferred
        if step % flush_every == flush_every - 1:
            decoder.flush()
            assert decoder.num_deferred.tolist() == [0, 0]
    decoder.flush()
    assert_same_cache(decoder, nvium, [ids[b][: lengths[b]] for b in range(2)])


def test_several_tokens_leave_nothing_deferred(nvium: Model, golden: Golden) -> None:
    """But the mixture decides what follows them."""
    ids, logits = golden["input_ids"].tolist(), golden["exit_logits"][0]
    decoder = PiggybackDecoder(nvium, 2, [ForcedRouting(0)] * 2)
    for t in range(4):
        decoder.feed([row[t : t + 1] for row in ids])
    assert decoder.num_deferred.tolist() == [4, 4]
    out = decoder.feed([ids[0][4:6], ids[1][4:5]])
    assert_golden_logits(out.logits, np.stack([logits[0, 5], logits[1, 4]]))
    # Row 1 would have been padding in row 0's calls: what it had deferred went along.
    assert decoder.num_deferred.tolist() == [0, 0]


def test_a_bound_keeps_calls_short(
    nvium: Model, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = []
    prepare = _BoundGraph.prepare

    def record(graph: _BoundGraph, sizes: Sizes) -> dict[str, NDArray[np.generic]]:
        rows.append(sizes.rows)
        return prepare(graph, sizes)

    decoder = PiggybackDecoder(nvium, 2, [ForcedRouting(0), ForcedRouting(1)], max_deferred=5)
    monkeypatch.setattr(_BoundGraph, "prepare", record)
    for t in range(LENGTH):
        decoder.feed(golden["input_ids"][:, t : t + 1].tolist())
    assert max(rows) == 6


def test_an_exit_skips_the_work_behind_it(nvium: Model, golden: Golden) -> None:
    decoder = PiggybackDecoder(nvium, 1, [ForcedRouting(1)])
    decoder.feed(golden["prompt_ids"].tolist())
    before = {name: session.busy_seconds for name, session in nvium.sessions.items()}
    decoder.feed([[3]])
    ran = {name for name, session in nvium.sessions.items() if session.busy_seconds > before[name]}
    assert ran == {"segment_0", "segment_1", "head"}


def test_padding_rides_along(nvium: Model, golden: Golden) -> None:
    """What a row has deferred is completed in calls that another row needs anyway."""
    decoder = PiggybackDecoder(nvium, 2, [ForcedRouting(0), ForcedRouting(NUM_EXITS - 1)])
    for t in range(6):
        decoder.feed(golden["input_ids"][:, t : t + 1].tolist())
    assert max(decoder.num_deferred) <= 1


@pytest.mark.parametrize("exit_index", [0, NUM_EXITS - 1])
def test_the_last_position_can_be_reached_beside_a_short_row(
    full_nvium: Model, golden: Golden, exit_index: int
) -> None:
    """Row 0 fills its 47 positions; only one row of padding is left, and row 1 goes on."""
    ids, logits = golden["input_ids"].tolist(), golden["exit_logits"][exit_index]
    decoder = PiggybackDecoder(full_nvium, 2, [ForcedRouting(exit_index)] * 2)
    decoder.feed([ids[0][:46], ids[1][:3]])
    out = decoder.feed([ids[0][46:47], []])
    assert_golden_logits(out.logits[0], logits[0, 46])
    out = decoder.feed([[], ids[1][3:40]])
    assert_golden_logits(out.logits[1], logits[1, 39])
    for t in range(40, 47):
        out = decoder.feed([[], ids[1][t : t + 1]])
        assert_golden_logits(out.logits[1], logits[1, t])
    decoder.flush()
    assert_same_cache(decoder, full_nvium, [row[:47] for row in ids])
    with pytest.raises(RequestError, match="at most 47"):
        decoder.feed([[1], []])


def test_a_refused_feed_changes_nothing(nvium: Model, golden: Golden) -> None:
    decoder = PiggybackDecoder(nvium, 1, [ArgmaxRouting()])
    expected = decoder.feed(golden["prompt_ids"].tolist()).logits.copy()
    for wrong in ([[512]], [[-1]], [[1] * 248], [[1], [1]]):
        with pytest.raises(RequestError):
            decoder.feed(wrong)
    other = PiggybackDecoder(nvium, 1, [ArgmaxRouting()])
    other.feed(golden["prompt_ids"][:, :-1].tolist())
    out = other.feed(golden["prompt_ids"][:, -1:].tolist())
    assert_golden_logits(out.logits, expected)
    assert decoder.lengths.tolist() == other.lengths.tolist() == [9]


def test_arguments_are_checked(nvium: Model, dense: Model) -> None:
    with pytest.raises(RequestError, match="2 routings for a batch of 1"):
        PiggybackDecoder(nvium, 1, [ArgmaxRouting()] * 2)
    with pytest.raises(RequestError, match="max_deferred = -1"):
        PiggybackDecoder(nvium, 1, [ArgmaxRouting()], -1)
    with pytest.raises(RequestError, match="batches of 1 to 4"):
        PiggybackDecoder(nvium, 5, [ArgmaxRouting()] * 5)
    with pytest.raises(RequestError, match="a model without"):
        PiggybackDecoder(dense, 1, [ArgmaxRouting()])
