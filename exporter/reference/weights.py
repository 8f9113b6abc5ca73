"""The weights of a checkpoint as float32 arrays, read when they are needed."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.checkpoint.lazy_tensor import LazyTensor
from quatrain.exporter.reference.functions import multiply

__all__ = ["Weights"]

Floats = NDArray[np.float32]


class Weights:
    """Tensors by name; those that are kept are read and widened to float32 once."""

    def __init__(self, tensors: Mapping[str, LazyTensor], *, keep: bool) -> None:
        self._tensors = tensors
        self._keep = keep
        self._kept: dict[str, Floats] = {}

    def __getitem__(self, name: str) -> Floats:
        found = self._kept.get(name)
        if found is None:
            found = np.require(self._tensors[name].read(), np.float32, ["C", "A"])
            if self._keep:
                self._kept[name] = found
        return found

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def look_up(self, name: str, indices: NDArray[np.int64]) -> Floats:
        """Rows of a table [V, H] at int64 [..], float32 [.., H]; the others are not read."""
        rows: NDArray[np.generic] = self._tensors[name].read()[indices]
        return np.asarray(rows, np.float32)

    def project(self, name: str, x: Floats) -> Floats:
        """x [.., in] times the transposed matrix `{name}.weight` [out, in], and `{name}.bias`
        [out] added if there is one."""
        result = multiply(x, self[f"{name}.weight"])
        return result + self[f"{name}.bias"] if f"{name}.bias" in self else result
