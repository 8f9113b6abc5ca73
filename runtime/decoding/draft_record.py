"""Counts what drafting did in one call."""

from collections.abc import Sequence
from dataclasses import dataclass

from quatrain.runtime.results import DraftPeriod, DraftStatistics

__all__ = ["Counts", "DraftRecord", "RoundRows", "list_rows"]

# For one row, or for each row of a batch.
Counts = int | Sequence[int]


@dataclass(frozen=True, slots=True)
class RoundRows:
    """Of each row of a round: guesses, those that were right, and tokens it got."""

    drafted: Sequence[int]
    accepted: Sequence[int]
    taken: Sequence[int]


def list_rows(
    num_drafted: Counts, num_accepted: Counts, num_taken: Counts | None = None
) -> RoundRows:
    """Row by row: as many guesses for all, if one number is given, and one token more than were
    right, if none is."""
    accepted = [num_accepted] if isinstance(num_accepted, int) else num_accepted
    drafted = [num_drafted] * len(accepted) if isinstance(num_drafted, int) else num_drafted
    if num_taken is None:
        num_taken = [right + 1 for right in accepted]
    taken = [num_taken] if isinstance(num_taken, int) else num_taken
    return RoundRows(drafted, accepted, taken)


@dataclass(slots=True)
class _Period:
    is_on: bool
    tokens: int = 0
    seconds: float = 0.0


class DraftRecord:
    """Rounds and plain steps of one call, in all its batches."""

    def __init__(self) -> None:
        self._num_rounds = 0
        self._num_plain_steps = 0
        self._num_row_steps = 0
        self._drafted: list[int] = []
        self._accepted: list[int] = []
        self._draft_seconds = 0.0
        self._verify_seconds = 0.0
        self._plain_seconds = 0.0
        self._periods: list[_Period] = []
        # What plain steps would have taken for the tokens of the rounds; None: not known.
        self._rounds_as_plain: float | None = 0.0

    def add_round(
        self,
        rows: RoundRows,
        seconds_draft: float,
        seconds_verify: float,
        *,
        is_on: bool,
        plain_seconds: float | None,
    ) -> None:
        """A round; `plain_seconds` is what a plain step takes, as far as that is known."""
        self._num_rounds += 1
        self._draft_seconds += seconds_draft
        self._verify_seconds += seconds_verify
        for guesses, right in zip(rows.drafted, rows.accepted, strict=True):
            self._count_places(guesses, right)
        seconds = seconds_draft + seconds_verify
        num_rows, tokens = len(rows.taken), sum(rows.taken)
        self._add_step(num_rows, tokens, seconds, is_on)
        if plain_seconds is None or self._rounds_as_plain is None:
            self._rounds_as_plain = None
        else:
            self._rounds_as_plain += tokens / num_rows * plain_seconds

    def add_plain(self, seconds: float, num_rows: int, *, is_on: bool) -> None:
        """A plain step."""
        self._num_plain_steps += 1
        self._plain_seconds += seconds
        self._add_step(num_rows, num_rows, seconds, is_on)

    @property
    def statistics(self) -> DraftStatistics:
        """The counts so far."""
        tokens = sum(period.tokens for period in self._periods)
        tokens_off = sum(period.tokens for period in self._periods if not period.is_on)
        seconds = self._draft_seconds + self._verify_seconds + self._plain_seconds
        speedup = None
        if self._rounds_as_plain is not None and seconds > 0:
            speedup = (self._rounds_as_plain + self._plain_seconds) / seconds
        return DraftStatistics(
            rounds=self._num_rounds,
            plain_steps=self._num_plain_steps,
            accepted_per_step=tokens / self._num_row_steps if self._num_row_steps else 0.0,
            acceptance=[a / d for a, d in zip(self._accepted, self._drafted, strict=True)],
            off_share=tokens_off / tokens if tokens else 0.0,
            periods=[DraftPeriod(p.is_on, p.tokens, p.seconds) for p in self._periods],
            draft_seconds=self._draft_seconds,
            verify_seconds=self._verify_seconds,
            plain_seconds=self._plain_seconds,
            speedup=speedup,
        )

    def _count_places(self, guesses: int, right: int) -> None:
        missing = guesses - len(self._drafted)
        self._drafted += [0] * missing
        self._accepted += [0] * missing
        for place in range(guesses):
            self._drafted[place] += 1
            self._accepted[place] += place < right

    def _add_step(self, num_rows: int, tokens: int, seconds: float, is_on: bool) -> None:
        if not self._periods or self._periods[-1].is_on != is_on:
            self._periods.append(_Period(is_on))
        period = self._periods[-1]
        period.tokens += tokens
        period.seconds += seconds
        self._num_row_steps += num_rows
