"""A small decoder whose logits are a formula of what it was fed, and rows for it."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quatrain.runtime.decoding.decoder import StepOutput
from quatrain.runtime.generation import Meter, Row, generate_steps
from quatrain.runtime.requests import Request
from quatrain.runtime.sampling import SamplingParams
from quatrain.runtime.tokenizer import Tokenizer

VOCAB = 97


class FormulaDecoder:
    """A `Decoder` that remembers all it is fed; the logits are `formula(tokens of the row)`."""

    def __init__(
        self,
        num_rows: int,
        formula: Callable[[list[int]], NDArray[np.float32]],
        *,
        has_exits: bool = False,
    ) -> None:
        self.fed: list[list[int]] = [[] for _ in range(num_rows)]
        self.calls: list[list[int]] = []
        self._formula = formula
        self._has_exits = has_exits

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.array([len(row) for row in self.fed], dtype=np.int64)

    def feed(self, token_ids: Sequence[Sequence[int]]) -> StepOutput:
        assert len(token_ids) == len(self.fed)
        self.calls.append([len(tokens) for tokens in token_ids])
        for row, tokens in zip(self.fed, token_ids, strict=True):
            row += tokens
        logits = np.stack([self._formula(row) for row in self.fed])
        exits = np.array([len(row) % 3 for row in self.fed]) if self._has_exits else None
        return StepOutput(logits, exits)

    def flush(self) -> None:
        pass


def hash_tokens(tokens: list[int]) -> NDArray[np.float32]:
    """Logits that depend on every token and its place."""
    seed = sum((place + 1) * (token + 7) for place, token in enumerate(tokens))
    return np.random.default_rng(seed).normal(0, 2, VOCAB).astype(np.float32)


def make_row(
    prompt: list[int],
    *,
    tokenizer: Tokenizer | None = None,
    eos: Sequence[int] = (),
    room: int = 10**6,
    **params: Any,
) -> Row:
    chosen = SamplingParams(**({"temperature": 0} | params))
    request = Request([], prompt, chosen, min(chosen.max_tokens, room))
    return Row(request, np.random.default_rng(chosen.seed), tokenizer, eos)


def run(decoder: FormulaDecoder, rows: Sequence[Row]) -> Meter:
    meter = Meter(lambda: 0.0)
    for _ in generate_steps(decoder, rows, meter):
        pass
    return meter
