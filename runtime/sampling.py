"""How the next token is chosen: the distribution that was asked for, and the draw.

The logits pass these steps in this order; each works on what the one before it left:

1. `repetition_penalty` (CTRL, arXiv 1909.05858): the score of every token already in the prompt or
   the output is divided by it where positive, multiplied where negative.
2. `temperature` divides the scores; 0 takes the most likely token and draws nothing.
3. `top_k` keeps the k most likely tokens.
4. `top_p` (arXiv 1904.09751) keeps the fewest most likely tokens whose mass reaches p.
5. `min_p` (arXiv 2407.01082) keeps the tokens at least min_p times as likely as the likeliest.

Ties go to the lower token id, so `top_k=1` is the same as greedy. What is left is renormalised and
drawn from by its inverse cumulative distribution, in float64.
"""

import math

import numpy as np
from numpy.typing import NDArray

from quatrain.runtime.errors import BundleError
from quatrain.runtime.sampling_params import RoutingChoice, SamplingParams

__all__ = ["RoutingChoice", "Sampler", "SamplingParams", "check_finite"]

_LARGEST = float(np.finfo(np.float64).max)


class Sampler:
    """Chooses the tokens of one sequence. `rng` belongs to the sequence: one draw a token."""

    def __init__(self, params: SamplingParams, rng: np.random.Generator) -> None:
        self._params = params
        self._rng = rng
        self._is_penalized = params.repetition_penalty != 1
        self._is_greedy = params.temperature == 0

    def pick(self, logits: NDArray[np.float32], history: NDArray[np.int64]) -> int:
        """Choose a token.

        Args:
            logits: [V].
            history: Prompt and output so far, [n]; repeats are harmless.
        """
        if not self._is_greedy:
            token_ids, weights = self._weigh(logits, history)
            place = _draw_place(weights, self._rng)
            return place if token_ids is None else int(token_ids[place])
        if self._is_penalized:
            check_finite(logits.max())
            return int(self._penalize(logits, history).argmax())
        token = int(logits.argmax())  # of a NaN, if there is one
        check_finite(logits[token])
        return token

    def propose(
        self, logits: NDArray[np.float32], history: NDArray[np.int64]
    ) -> tuple[int, NDArray[np.float64] | None]:
        """Choose a token as a guess, and the probabilities [V] it was drawn from (None: greedy)."""
        if self._is_greedy:
            return self.pick(logits, history), None
        probs = self.distribution(logits, history)
        return _draw_place(probs, self._rng), probs

    def verify(
        self,
        logits: NDArray[np.float32],
        history: NDArray[np.int64],
        guess: int,
        guess_probs: NDArray[np.float64] | None,
    ) -> tuple[int, bool]:
        """Choose a token where another model guessed one, and whether it is the guess.

        The token is distributed as `pick` would have it, whatever the guess: a guess drawn from q
        stays with probability min(1, p/q), and else one is drawn from max(p - q, 0), renormalised
        (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318).
        """
        if guess_probs is None:
            token = self.pick(logits, history)
            return token, token == guess
        probs = self.distribution(logits, history)
        if self._rng.random() * guess_probs[guess] < probs[guess]:
            return guess, True
        left = np.maximum(probs - guess_probs, 0)
        # Rounding alone can leave nothing, if the two agree; then either is right.
        return _draw_place(left if left.any() else probs, self._rng), False

    def distribution(
        self, logits: NDArray[np.float32], history: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """The probabilities [V] that `pick` draws from; greedy is one-hot."""
        probs = np.zeros(logits.shape[-1])
        if self._is_greedy:
            probs[self.pick(logits, history)] = 1
            return probs
        token_ids, weights = self._weigh(logits, history)
        probs[slice(None) if token_ids is None else token_ids] = weights / weights.sum()
        return probs

    def _weigh(
        self, logits: NDArray[np.float32], history: NDArray[np.int64]
    ) -> tuple[NDArray[np.intp] | None, NDArray[np.float64]]:
        """The kept token ids, ascending (None: all), and their weights; the largest weight is 1."""
        params = self._params
        check_finite(logits.max())
        scores = self._penalize(logits, history) if self._is_penalized else logits
        token_ids: NDArray[np.intp] | None = None
        if 0 < params.top_k < scores.size:
            token_ids = _find_largest(scores, params.top_k)
            scores = scores[token_ids]
        with np.errstate(over="ignore", under="ignore"):
            weights = np.subtract(scores, scores.max(), dtype=np.float64)
            weights /= params.temperature
            np.exp(weights, out=weights)
        if params.top_p < 1:
            kept = _find_largest(weights, _count_nucleus(weights, params.top_p))
            token_ids, weights = _narrow(token_ids, kept), weights[kept]
        if params.min_p > 0:
            kept = np.flatnonzero(weights >= params.min_p)
            token_ids, weights = _narrow(token_ids, kept), weights[kept]
        return token_ids, weights

    def _penalize(
        self, logits: NDArray[np.float32], history: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        penalty = self._params.repetition_penalty
        scores = logits.astype(np.float64)
        seen = scores[history]
        with np.errstate(over="ignore", under="ignore"):
            seen = np.where(seen < 0, seen * penalty, seen / penalty)
        scores[history] = np.clip(seen, -_LARGEST, _LARGEST)
        return scores


def _find_largest(values: NDArray[np.floating], count: int) -> NDArray[np.intp]:
    """Ascending places of the `count` largest values; of equal ones the first."""
    smallest_kept = np.partition(values, values.size - count)[values.size - count]
    is_kept = values > smallest_kept
    ties = np.flatnonzero(values == smallest_kept)
    is_kept[ties[: count - np.count_nonzero(is_kept)]] = True
    return np.flatnonzero(is_kept)


def _count_nucleus(weights: NDArray[np.float64], top_p: float) -> int:
    """How many of the largest weights are needed for `top_p` of their sum.

    A full sort of a vocabulary takes milliseconds and most of it is tail, so a growing head is
    sorted until it is enough.
    """
    wanted = top_p * float(weights.sum())
    size = min(256, weights.size)
    while True:
        head = np.partition(weights, weights.size - size)[weights.size - size :]
        mass = np.sort(head)[::-1].cumsum()
        if mass[-1] >= wanted:
            return int(mass.searchsorted(wanted)) + 1
        if size == weights.size:
            return size
        size = min(size * 8, weights.size)


def _narrow(token_ids: NDArray[np.intp] | None, kept: NDArray[np.intp]) -> NDArray[np.intp]:
    return kept if token_ids is None else token_ids[kept]


def _draw_place(weights: NDArray[np.float64], rng: np.random.Generator) -> int:
    cumulative = weights.cumsum()
    place = int(cumulative.searchsorted(rng.random() * cumulative[-1], side="right"))
    if place < weights.size:
        return place
    return int(np.flatnonzero(weights)[-1])  # the product rounded up to the whole mass


def check_finite(largest: np.floating) -> None:
    """Raise `BundleError` unless the largest logit (NaN, if there is one) is a number."""
    if not math.isfinite(largest):
        raise BundleError(
            "the logits of the next token",
            f"the model produced {largest}",
            "look for NaN or Inf in the checkpoint (quatrain inspect --check-weights); if it has "
            "none, export it with a wider --dtype (bfloat16 or float32)",
        )
