"""How the next token is chosen: what may be asked, the distribution that makes, and the draw.

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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from quatrain.runtime.errors import BundleError, RequestError

__all__ = ["RoutingChoice", "Sampler", "SamplingParams", "check_finite"]

RoutingChoice = Literal["sample", "argmax"] | int

_LARGEST = float(np.finfo(np.float64).max)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens, and when to stop. A value that cannot be served raises `RequestError`.

    Args:
        temperature: 1 draws from the model's own distribution, 0 is greedy.
        top_k: Keep this many of the most likely tokens; 0 keeps all.
        top_p: Keep the most likely tokens that hold this much of the mass; 1 keeps all.
        min_p: Keep tokens at least this many times as likely as the likeliest; 0 keeps all.
        repetition_penalty: Above 1 makes tokens that occurred less likely; 1 is off.
        seed: Makes the draws repeatable, alone or in a batch; None draws anew each time.
        stop: A string or several. The text ends before the first one to be completed.
        stop_token_ids: Tokens that end the generation as EOS does.
        max_tokens: Most tokens to generate. 0 does no work and returns an empty text.
        ignore_eos: Go on after EOS (`stop` and `stop_token_ids` still count).
        routing: How a model with exits leaves early. "sample" draws from the exact mixture, and is
            the default where temperature > 0; "argmax" exits where that is more likely than not, a
            deterministic and therefore different model, and the default at temperature 0; an
            integer forces that exit at every token. A model without exits refuses all three.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    max_tokens: int = 128
    ignore_eos: bool = False
    routing: RoutingChoice | None = None

    def __post_init__(self) -> None:
        for name, is_valid, wanted in _REAL_RULES:
            self._set(name, _read_real(name, getattr(self, name), is_valid, wanted))
        for name, wanted in _COUNT_RULES:
            self._set(name, _read_count(name, getattr(self, name), wanted))
        if self.seed is not None:
            self._set("seed", _read_count("seed", self.seed, "an integer, at least 0, or None"))
        if not isinstance(self.ignore_eos, bool):
            _refuse("ignore_eos", self.ignore_eos, "True or False")
        self._set("stop", _read_stop(self.stop))
        self._set("stop_token_ids", _read_stop_token_ids(self.stop_token_ids))
        self._set("routing", _read_routing(self.routing))

    @property
    def chosen_routing(self) -> RoutingChoice:
        """`routing`, with its default filled in."""
        if self.routing is not None:
            return self.routing
        return "sample" if self.temperature > 0 else "argmax"

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


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


# --- what SamplingParams accepts ---

_REAL_RULES: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    ("temperature", lambda x: 0 <= x < math.inf, "a finite number, at least 0 (0: greedy)"),
    ("top_p", lambda x: 0 < x <= 1, "a number above 0 and at most 1 (1: off)"),
    ("min_p", lambda x: 0 <= x <= 1, "a number from 0 to 1 (0: off)"),
    ("repetition_penalty", lambda x: 0 < x < math.inf, "a finite number above 0 (1: off)"),
)
_COUNT_RULES = (
    ("top_k", "an integer, at least 0 (0: off)"),
    ("max_tokens", "an integer, at least 0"),
)


def _refuse(name: str, value: object, wanted: str) -> NoReturn:
    raise RequestError(f"{name}={value!r}", f"that is not {wanted}", f"make {name} {wanted}")


def _read_real(name: str, value: object, is_valid: Callable[[float], bool], wanted: str) -> float:
    number = math.nan
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
    if not is_valid(number):
        _refuse(name, value, wanted)
    return number


def _read_count(name: str, value: object, wanted: str) -> int:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 0:
        _refuse(name, value, wanted)
    return int(value)


def _read_stop(value: object) -> tuple[str, ...]:
    wanted = "a non-empty string, or several"
    strings = (value,) if isinstance(value, str) else _read_items("stop", value, wanted)
    if not all(isinstance(item, str) and item for item in strings):
        _refuse("stop", value, wanted)
    return tuple(str(item) for item in strings)


def _read_stop_token_ids(value: object) -> tuple[int, ...]:
    wanted = "a list of token ids (integers, at least 0)"
    items = _read_items("stop_token_ids", value, wanted)
    return tuple(_read_count("stop_token_ids", item, wanted) for item in items)


def _read_items(name: str, value: object, wanted: str) -> tuple[object, ...]:
    if isinstance(value, (str, bytes, dict)) or not isinstance(value, Iterable):
        _refuse(name, value, wanted)
    return tuple(value)


def _read_routing(value: object) -> RoutingChoice | None:
    wanted = '"sample", "argmax", the index of an exit (at least 0), or None'
    if value is None or (isinstance(value, str) and value in ("sample", "argmax")):
        return cast(Literal["sample", "argmax"] | None, value)
    return _read_count("routing", value, wanted)
