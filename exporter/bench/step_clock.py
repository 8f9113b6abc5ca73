"""Tells steps apart by the calls of the backend, and how long each took."""

import time
from collections.abc import Callable, Mapping
from itertools import pairwise

__all__ = ["StepClock"]


class StepClock:
    """Ticked at each token of a batch.

    A step is what one call of `Decoder.feed`, or one verified round of drafts, takes up to the last
    token it gives. Tokens of one verification come without a call of the backend between them; that
    is how they are known to be one step.

    Args:
        count_calls: The backend's running totals, by graph.
    """

    def __init__(self, count_calls: Callable[[], Mapping[str, int]]) -> None:
        self._count_calls = count_calls
        self._calls: Mapping[str, int] = {}
        self._marks = [time.perf_counter()]

    def tick(self) -> None:
        """A token came."""
        now, calls = time.perf_counter(), self._count_calls()
        if calls == self._calls:
            self._marks[-1] = now
        else:
            self._marks.append(now)
            self._calls = calls

    @property
    def seconds(self) -> list[float]:
        """Of each step so far, from the end of the one before it."""
        return [after - before for before, after in pairwise(self._marks)]
