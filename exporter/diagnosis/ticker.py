"""Tells how far several passes over the same text are."""

import time

from quatrain.exporter.progress import Progress

__all__ = ["Ticker"]

_SECONDS = 2.0


class Ticker:
    """Counts the tokens of all passes, and says now and then what is left.

    Args:
        tokens: Of one pass.
    """

    def __init__(self, progress: Progress, num_passes: int, tokens: int) -> None:
        self._progress = progress
        self._num_passes = num_passes
        self._tokens = tokens
        self._number = 0
        self._name = ""
        self._done = 0
        self._start = self._last = time.monotonic()

    def begin(self, name: str) -> None:
        """The next pass."""
        self._number += 1
        self._done = 0
        self._name = f"pass {self._number} of {self._num_passes} ({name})"
        self._tell()

    def advance(self, tokens: int) -> None:
        """So many tokens more of this pass."""
        self._done += tokens
        if time.monotonic() - self._last >= _SECONDS:
            self._tell()

    def _tell(self) -> None:
        self._last = time.monotonic()
        done = (self._number - 1) * self._tokens + self._done
        line = f"{self._name}: {self._done} of {self._tokens} tokens"
        if done:
            rest = self._num_passes * self._tokens - done
            line += f", about {(self._last - self._start) / done * rest:.0f} s left"
        self._progress.say(line)
