"""Which runs of a text each step of a training learns from, whenever it is asked."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["Batches"]


class Batches:
    """All of `count` numbers in one order after another; the orders follow from the seed alone, so
    that a training that goes on sees what it would have seen."""

    def __init__(self, count: int, size: int, seed: int) -> None:
        self._count, self._size, self._seed = count, size, seed
        self._epoch = -1
        self._order = np.zeros(0, np.int64)

    def pick(self, step: int) -> NDArray[np.int64]:
        """The numbers of a step, int64 [size]."""
        start = step * self._size
        parts = []
        left = self._size
        while left:
            epoch, at = divmod(start + self._size - left, self._count)
            part = self._shuffle(epoch)[at : at + left]
            parts.append(part)
            left -= len(part)
        return np.concatenate(parts)

    def _shuffle(self, epoch: int) -> NDArray[np.int64]:
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self._seed, epoch]).permutation(self._count)
        return self._order
