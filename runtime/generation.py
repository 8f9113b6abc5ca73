"""The decode loop: one for a batch, a stream and a conversation alike."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quatrain.runtime.decoding.decoder import Decoder, StepOutput
from quatrain.runtime.decoding.draft_record import DraftRecord
from quatrain.runtime.requests import Request
from quatrain.runtime.results import FinishReason
from quatrain.runtime.sampling import Sampler
from quatrain.runtime.stopping import TextStream
from quatrain.runtime.tokenizer import Tokenizer

__all__ = ["Guess", "Meter", "Row", "find_unfed", "generate_steps"]


class Meter:
    """Seconds spent generating, and how many of them inside the backend.

    Args:
        read_busy_seconds: The backend's own running total.
        draft: Where drafting counts what it does; None for a model that does not draft.
    """

    def __init__(
        self, read_busy_seconds: Callable[[], float], draft: DraftRecord | None = None
    ) -> None:
        self.draft = draft
        self._read_busy = read_busy_seconds
        self._started = 0.0
        self._busy_at_start = 0.0
        self.seconds = 0.0
        self.busy_seconds = 0.0
        self.prefill_seconds = 0.0
        self.time_to_first_token: float | None = None

    def start(self) -> None:
        """Begin, or go on."""
        self._busy_at_start = self._read_busy()
        self._started = time.perf_counter()

    def stop(self, *, is_prefill: bool = False) -> float:
        """Pause; the seconds since `start`, which with `is_prefill` led to the first token."""
        seconds = time.perf_counter() - self._started
        self.seconds += seconds
        self.busy_seconds += self._read_busy() - self._busy_at_start
        if is_prefill:
            self.prefill_seconds += seconds
            if self.time_to_first_token is None:
                self.time_to_first_token = self.seconds
        return seconds


class Guess(NamedTuple):
    """A drafted token, and the probabilities [V] it was drawn from (None: the likeliest)."""

    token: int
    probs: NDArray[np.float64] | None


class Row:
    """One sequence of a batch while it is generated.

    `text` and `delta` are the text so far in pieces, and what the last step added to it;
    `finish_reason` is None while the sequence goes on.
    """

    def __init__(
        self,
        request: Request,
        rng: np.random.Generator,
        tokenizer: Tokenizer | None,
        eos_token_ids: Sequence[int],
    ) -> None:
        params = request.params
        self.request = request
        self.token_ids: list[int] = []
        self.exits: list[int] = []
        self.pieces: list[str] = []
        self.delta = ""
        self.finish_reason: FinishReason | None = None if request.max_tokens else "length"
        self._sampler = Sampler(params, rng)
        self._text = TextStream(tokenizer.start_decoding(), params.stop) if tokenizer else None
        self._stop_ids = {*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)}
        self._num_known = len(request.context_ids)
        self._history = np.empty(self._num_known + request.max_tokens, dtype=np.int64)
        self._history[: self._num_known] = request.context_ids

    @property
    def is_repeatable(self) -> bool:
        """Whether the same request has to give the same tokens again, though they are drawn."""
        return self.request.params.is_repeatable

    @property
    def num_left(self) -> int:
        """Tokens that may still be generated."""
        return self.request.max_tokens - len(self.token_ids)

    def take(self, logits: NDArray[np.float32], exit_index: int | None) -> int:
        """Choose the next token from its logits [V], and see whether it ends the sequence."""
        token = self._sampler.pick(logits, self._history[: self._num_known])
        if exit_index is not None:
            self.exits.append(exit_index)
        self._append(token)
        return token

    def propose(self, logits: NDArray[np.float32], guesses: Sequence[Guess]) -> Guess:
        """Guess the token behind `guesses`, which follow those taken, from a drafter's logits."""
        history = self._history[: self._num_known]
        if guesses:
            tokens = [guess.token for guess in guesses]
            history = np.concatenate((history, np.array(tokens, np.int64)))
        return Guess(*self._sampler.propose(logits, history))

    def take_verified(self, logits: NDArray[np.float32], guess: Guess) -> bool:
        """Choose the next token as `take` does, where one was guessed; whether it is the guess."""
        history = self._history[: self._num_known]
        token, is_guess = self._sampler.verify(logits, history, guess.token, guess.probs)
        self._append(token)
        return is_guess

    def _append(self, token: int) -> None:
        self._history[self._num_known] = token
        self._num_known += 1
        self.token_ids.append(token)
        self._advance(token)

    def _advance(self, token: int) -> None:
        is_last = token in self._stop_ids
        if is_last:
            self.finish_reason = "stop"
        elif len(self.token_ids) == self.request.max_tokens:
            self.finish_reason = "length"
        if self._text is None:
            return
        self.delta = "" if is_last else self._text.push(token)
        if self.finish_reason:
            self.delta += self._text.finish()
        if self._text.is_stopped:
            self.finish_reason = "stop"
        self.pieces.append(self.delta)


def generate_steps(decoder: Decoder, rows: Sequence[Row], meter: Meter) -> Iterator[None]:
    """Generate until every row is finished; yields after each token of the batch.

    Rows are fed what the decoder lacks of their context, then their own tokens one by one; a
    finished row is fed nothing. The last token of a row is therefore not in the cache.

    Args:
        decoder: One batch row for each of `rows`.
    """
    feed = [find_unfed(row, length) for row, length in zip(rows, decoder.lengths, strict=True)]
    is_prefill = True
    while any(row.finish_reason is None for row in rows):
        meter.start()
        step = decoder.feed(feed)
        for index, row in enumerate(rows):
            feed[index] = _extend_row(row, step, index)
        meter.stop(is_prefill=is_prefill)
        is_prefill = False
        yield


def find_unfed(row: Row, length: np.int64) -> Sequence[int]:
    """What a decoder that was fed `length` tokens lacks of a row's context."""
    return () if row.finish_reason is not None else row.request.context_ids[int(length) :]


def _extend_row(row: Row, step: StepOutput, index: int) -> Sequence[int]:
    """Take one row's token; what to feed the row next."""
    if row.finish_reason is not None:
        return ()
    exit_index = None if step.exits is None else int(step.exits[index])
    token = row.take(step.logits[index], exit_index)
    return () if row.finish_reason is not None else (token,)
