"""What is said of drafts, against a roll-out one row at a time."""

import numpy as np
import pytest

from quatrain.exporter.drafting import quality as quality_module
from quatrain.exporter.drafting.dynamics import begin_weights, guess_next
from quatrain.exporter.drafting.quality import measure_quality
from quatrain.exporter.drafting.states import StateRuns

HIDDEN, VOCAB = 6, 9
RNG = np.random.default_rng(4)


@pytest.fixture
def runs() -> StateRuns:
    states = RNG.standard_normal((2, 8, HIDDEN)).astype(np.float16)
    table = RNG.standard_normal((VOCAB, HIDDEN)).astype(np.float32)
    return StateRuns(states, RNG.integers(0, VOCAB, (2, 8)), table)


def test_shares_are_of_drafts_whose_predecessors_match(
    runs: StateRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quality_module, "_ROWS", 3)
    monkeypatch.setattr(quality_module, "_HEAD_ROWS", 4)
    weights = begin_weights(HIDDEN, 8, RNG)
    weights["down"] = RNG.standard_normal((HIDDEN, 8)).astype(np.float32) / 4
    head = RNG.standard_normal((VOCAB, HIDDEN)).astype(np.float16)
    found = measure_quality(weights, runs, head, 3)
    lengths = []
    for window in range(2):
        for start in range(5):
            state = runs.states[window, start][None].astype(np.float32)
            length = 0
            for k in range(1, 4):
                token = runs.token_ids[window, start + k]
                state = guess_next(weights, state, runs.table[token][None]).next_states
                true = runs.states[window, start + k].astype(np.float32)
                if (state @ head.T).argmax() != (true @ head.T).argmax():
                    break
                length += 1
            lengths.append(length)
    assert found.num_positions == len(lengths) == 10
    assert 0 < sum(lengths) < 30
    assert found.tokens_per_step == pytest.approx(1 + np.mean(lengths))
    products = np.cumprod(found.draft_shares)
    assert found.tokens_per_step == pytest.approx(1 + products.sum())


def test_errors_are_relative_to_the_next_states(runs: StateRuns) -> None:
    weights = begin_weights(HIDDEN, 8, RNG)  # which change nothing yet
    found = measure_quality(weights, runs, runs.table, 1)
    states = runs.states.astype(np.float64)
    before, after = states[:, :-1], states[:, 1:]
    expected = np.sqrt(((after - before) ** 2).sum() / (after**2).sum())
    assert found.relative_error == found.unchanged_error == pytest.approx(expected)


def test_a_run_has_the_embeddings_of_the_tokens_behind_its_first_state(runs: StateRuns) -> None:
    assert runs.count(3) == 10 and runs.count(8) == 0
    states, embeddings = runs.take(np.array([0, 7]), 3)
    assert np.array_equal(states[1], runs.states[1, 2:6])
    assert np.array_equal(embeddings[1], runs.table[runs.token_ids[1, 3:6]])
    assert states.dtype == embeddings.dtype == np.float32
