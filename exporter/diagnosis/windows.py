"""A text in windows that see nothing of each other, and their positions in buckets."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Window", "cut_windows", "number_buckets", "start_buckets"]

_STARTS = (0, 128)
_FIRST_DOUBLED = 512


@dataclass(frozen=True, slots=True)
class Window:
    """A run of tokens int64 [R] at the positions 0 to R - 1, and the token after each [R]."""

    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]


def cut_windows(ids: Sequence[int], size: int, bos_token_id: int | None) -> list[Window]:
    """Windows of `size` tokens, in which every token after the first is predicted once.

    As in `runtime.perplexity`, a window begins with BOS where the text does, else with the last
    token of the window before it.
    """
    has_bos = ids[0] == bos_token_id
    windows = []
    for start in range(1, len(ids), size):
        targets = np.asarray(ids[start : start + size], np.int64)
        seen = ids[0] if has_bos else ids[start - 1]
        windows.append(Window(np.concatenate([[seen], targets[:-1]]).astype(np.int64), targets))
    return windows


def start_buckets(length: int) -> list[int]:
    """The first position of each bucket of `length` positions: 0, 128, 512, and then doubling."""
    starts = [start for start in _STARTS if start < length]
    start = _FIRST_DOUBLED
    while start < length:
        starts.append(start)
        start *= 2
    return starts


def number_buckets(starts: Sequence[int], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bucket of each position."""
    return np.searchsorted(np.asarray(starts), positions, side="right") - 1
