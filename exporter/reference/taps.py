"""What a run keeps of what it computes, by name."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Recorder", "Taps"]


class Taps(Mapping[str, NDArray[Any]]):
    """Arrays by name, in the order in which they were computed; `ReferenceDecoder.run` says which.

    All are float32, except for the bool ones of active channels.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = dict(arrays)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


class Recorder:
    """Collects the arrays that someone wants."""

    def __init__(self, keep: Callable[[str], bool] | None = None) -> None:
        self._keep = keep
        self._arrays: dict[str, NDArray[Any]] = {}

    def wants(self, name: str) -> bool:
        """Whether an array of this name is kept; one that is not need not be computed."""
        return self._keep is None or self._keep(name)

    def record(self, name: str, array: NDArray[Any]) -> None:
        """Keep an array, if it is wanted; it must not be written to afterwards."""
        if self.wants(name):
            self._arrays[name] = np.ascontiguousarray(array)

    def finish(self) -> Taps:
        """All that was kept."""
        return Taps(self._arrays)
