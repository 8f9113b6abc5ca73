"""The decode loop with a drafter: rounds of guesses, verified together, token by token."""

import time
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quatrain.runtime.decoding.speculative import SpeculativeDecoder
from quatrain.runtime.generation import Guess, Meter, Row, find_unfed

__all__ = ["DraftChooser", "generate_drafted"]


class DraftChooser(Protocol):
    """Says how many tokens to guess, and is told what came of it."""

    def choose(self) -> int:
        """Guesses of the next round; 0 for a step without."""
        ...

    def record_round(
        self,
        num_drafted: Sequence[int],
        num_accepted: Sequence[int],
        seconds_draft: float,
        seconds_verify: float,
        num_taken: Sequence[int],
    ) -> None:
        """A round: guesses of each row, those that were right, and tokens it was given."""
        ...

    def record_plain(self, seconds: float, num_rows: int) -> None:
        """A step without guesses, for so many rows."""
        ...


def generate_drafted(
    decoder: SpeculativeDecoder,
    rows: Sequence[Row],
    meter: Meter,
    chooser: DraftChooser,
    max_seq_len: int,
) -> Iterator[None]:
    """Generate as `generate_steps` does, the same tokens (greedy) or from the same distribution;
    yields whenever rows have one more token each.

    In a round every row has guesses of its own and keeps as many as are right: the batch does not
    wait for its slowest row.
    """
    feed = [find_unfed(row, n) for row, n in zip(rows, decoder.lengths, strict=True)]
    is_first = True
    while any(row.finish_reason is None for row in rows):
        count = 0 if is_first else chooser.choose()
        seconds_before = meter.seconds
        meter.start()
        begin = time.perf_counter()
        guesses = _draft(decoder, rows, count, max_seq_len) if count else None
        if guesses is None or not any(guesses):
            num_rows = sum(row.finish_reason is None for row in rows)
            _step(decoder, rows, feed)
            seconds = meter.stop(is_prefill=is_first)
            if not is_first:
                chooser.record_plain(seconds, num_rows)
            is_first = False
            yield
        else:
            seconds_draft = time.perf_counter() - begin
            fed = [
                [*tokens, *(guess.token for guess in guessed)]
                for tokens, guessed in zip(feed, guesses, strict=True)
            ]
            logits = decoder.verify(fed)
            meter.stop()
            kept, accepted = [0] * len(rows), [0] * len(rows)
            yield from _take(rows, guesses, logits, kept, accepted, meter)
            decoder.keep(kept)
            going = [b for b, n in enumerate(kept) if n]
            chooser.record_round(
                [len(guesses[b]) for b in going],
                [accepted[b] for b in going],
                seconds_draft,
                meter.seconds - seconds_before - seconds_draft,
                [kept[b] for b in going],
            )
        feed = [() if row.finish_reason is not None else row.token_ids[-1:] for row in rows]


def _step(decoder: SpeculativeDecoder, rows: Sequence[Row], feed: Sequence[Sequence[int]]) -> None:
    step = decoder.feed(feed)
    for index, row in enumerate(rows):
        if row.finish_reason is None:
            row.take(step.logits[index], None)


def _draft(
    decoder: SpeculativeDecoder, rows: Sequence[Row], count: int, max_seq_len: int
) -> list[list[Guess]]:
    """At most `count` guesses for each row that goes on, no more than it has room for."""
    guesses: list[list[Guess]] = [[] for _ in rows]
    lengths = decoder.lengths
    # The token behind the last guess is one more, and so is the one the guesses follow.
    room = [
        0 if row.finish_reason is not None else min(row.num_left, max_seq_len - int(n)) - 1
        for row, n in zip(rows, lengths, strict=True)
    ]
    decoder.start_drafting()
    for place in range(count):
        going = [b for b, most in enumerate(room) if most > place]
        if not going:
            break
        tokens = [guesses[b][-1].token if place else rows[b].token_ids[-1] for b in going]
        logits = decoder.draft(going, tokens).astype(np.float32, copy=False)
        for i, b in enumerate(going):
            guesses[b].append(rows[b].propose(logits[i], guesses[b]))
    return guesses


def _take(
    rows: Sequence[Row],
    guesses: Sequence[Sequence[Guess]],
    logits: NDArray[np.generic],
    kept: list[int],
    accepted: list[int],
    meter: Meter,
) -> Iterator[None]:
    """Take tokens from verified logits [B, R, V] as long as the guesses are right, and one more;
    `kept` counts the tokens fed to each row that turned out to belong there, `accepted` the right
    guesses (the one that ends a sequence is right, and not fed on)."""
    verified = logits.astype(np.float32, copy=False)
    going = [b for b, row in enumerate(rows) if row.finish_reason is None]
    place = 0
    while going:
        meter.start()
        right = []
        for b in going:
            row = rows[b]
            kept[b] = place + 1
            if place == len(guesses[b]):
                row.take(verified[b, place], None)
            elif row.take_verified(verified[b, place], guesses[b][place]):
                accepted[b] += 1
                right.append(b)
        going = [b for b in right if rows[b].finish_reason is None]
        place += 1
        meter.stop()
        yield
