"""What may be asked of the choice of tokens, checked where it is asked."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn, cast

import numpy as np

from quatrain.runtime.errors import RequestError

__all__ = ["RoutingChoice", "SamplingParams"]

RoutingChoice = Literal["sample", "argmax"] | int


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens, and when to stop. A value that cannot be served raises `RequestError`;
    only `max_tokens` may be more than there is room for.

    Args:
        temperature: 1 draws from the model's own distribution, 0 is greedy.
        top_k: Keep this many of the most likely tokens; 0 keeps all.
        top_p: Keep the most likely tokens that hold this much of the mass; 1 keeps all.
        min_p: Keep tokens at least this many times as likely as the likeliest; 0 keeps all.
        repetition_penalty: Above 1 makes tokens that occurred less likely; 1 is off.
        seed: Makes the draws repeatable, alone or in a batch; None draws anew each time.
        stop: A string or several. The text ends before the first one to be completed.
        stop_token_ids: Tokens that end the generation as EOS does.
        max_tokens: Most tokens to generate. Where the bundle's limit on prompt and output together
            (`manifest.limits.max_seq_len`) comes first, the sequence ends there, with the
            `finish_reason` "length", too. 0 does no work and returns an empty text.
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
    def is_repeatable(self) -> bool:
        """Whether tokens are drawn and have to be the same ones again."""
        return self.seed is not None and self.temperature > 0

    @property
    def chosen_routing(self) -> RoutingChoice:
        """`routing`, with its default filled in."""
        if self.routing is not None:
            return self.routing
        return "sample" if self.temperature > 0 else "argmax"

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


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
