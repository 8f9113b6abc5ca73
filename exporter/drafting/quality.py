"""How well dynamics guess, on text that they were not fitted to."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.drafting.dynamics import Weights
from quatrain.exporter.drafting.roll_out import roll_out
from quatrain.exporter.drafting.states import StateRuns

__all__ = ["DraftQuality", "measure_quality"]

_MOST_ERRORS = 8192  # positions that errors of states are measured at
_MOST_DRAFTS = 512  # and tokens: a product with the whole head for every draft
_ROWS = 512  # that are rolled out together
_HEAD_ROWS = 8192  # of the head that are float32 at a time


@dataclass(frozen=True, slots=True)
class DraftQuality:
    """Over positions of held-out text; roll-outs are fed the tokens of the text.

    `relative_error` is the root of E|guess - h'|^2 / E|h'|^2 over the next states h' one step on,
    `unchanged_error` that of taking the state itself for the next one. `draft_shares` has a number
    for each draft position: of the drafts whose predecessors all match, how many match, that is,
    the head has its largest logit for the guessed state and for the true one at the same token.
    `tokens_per_step` is 1 + the number of drafts before the first that does not match, on average:
    1 + the sum of the products of the shares up to each.
    """

    relative_error: float
    unchanged_error: float
    draft_shares: list[float]
    tokens_per_step: float
    num_positions: int


def measure_quality(
    weights: Weights, runs: StateRuns, head: NDArray[np.generic], num_drafts: int
) -> DraftQuality:
    """Measure float32 dynamics.

    Args:
        head: What makes logits of a state, [V, d] of any float type.
        num_drafts: Draft positions.
    """
    with np.errstate(all="ignore"):  # dynamics that diverged are measured like others
        error, unchanged = _measure_errors(weights, runs)
        matches = _match_drafts(weights, runs, head, num_drafts)
    alive = np.logical_and.accumulate(matches, axis=1)
    reached = np.concatenate([[len(matches)], alive.sum(axis=0)])
    return DraftQuality(
        relative_error=error,
        unchanged_error=unchanged,
        draft_shares=[
            float(after / before) if before else 0.0 for before, after in pairwise(reached)
        ],
        tokens_per_step=1 + float(alive.sum(axis=1).mean()),
        num_positions=len(matches),
    )


def _measure_errors(weights: Weights, runs: StateRuns) -> tuple[float, float]:
    error = unchanged = energy = 0.0
    for states, embeddings in _spread(runs, 1, _MOST_ERRORS):
        before, after = states[:, 0], states[:, 1]
        [step] = roll_out(weights, before, embeddings)
        error += float(np.square(step.next_states - after, dtype=np.float64).sum())
        unchanged += float(np.square(before - after, dtype=np.float64).sum())
        energy += float(np.square(after, dtype=np.float64).sum())
    energy = max(energy, float(np.finfo(np.float64).tiny))
    return float(np.sqrt(error / energy)), float(np.sqrt(unchanged / energy))


def _match_drafts(
    weights: Weights, runs: StateRuns, head: NDArray[np.generic], num_drafts: int
) -> NDArray[np.bool_]:
    """Whether the token of each guess is that of the true state, [N, num_drafts]."""
    parts = []
    for states, embeddings in _spread(runs, num_drafts, _MOST_DRAFTS):
        steps = roll_out(weights, states[:, 0], embeddings)
        guesses = np.stack([step.next_states for step in steps], axis=1)
        drafts, tokens = (_pick_tokens(rows, head) for rows in (guesses, states[:, 1:]))
        parts.append(drafts == tokens)
    return np.concatenate(parts)


def _spread(
    runs: StateRuns, length: int, most: int
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    count = runs.count(length)
    indices = np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))
    for at in range(0, len(indices), _ROWS):
        yield runs.take(indices[at : at + _ROWS], length)


def _pick_tokens(states: NDArray[np.floating], head: NDArray[np.generic]) -> NDArray[np.int64]:
    """The token with the largest logit of each state: [..., d] to int64 [...]."""
    rows = states.reshape(-1, states.shape[-1])
    best = np.full(len(rows), -np.inf, np.float32)
    tokens = np.zeros(len(rows), np.int64)
    for at in range(0, len(head), _HEAD_ROWS):
        logits = rows @ head[at : at + _HEAD_ROWS].astype(np.float32).T
        found = logits.argmax(axis=1)
        values = np.take_along_axis(logits, found[:, None], axis=1)[:, 0]
        is_better = values > best
        best[is_better] = values[is_better]
        tokens[is_better] = at + found[is_better]
    return tokens.reshape(states.shape[:-1])
