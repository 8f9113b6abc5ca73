"""NaN and infinity among the weights: such a model can only produce garbage."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.checkpoint.checkpoint import Checkpoint
from quatrain.exporter.progress import Progress

__all__ = ["BadWeight", "NonFiniteCounter", "find_bad_weights"]


class _Layout(NamedTuple):
    """An IEEE-like float: its unsigned twin, all bits but the sign, and the exponent bits."""

    twin: np.dtype[np.unsignedinteger]
    magnitude: int
    exponent: int


_LAYOUTS = {
    "F32": _Layout(np.dtype("<u4"), 0x7FFF_FFFF, 0x7F80_0000),
    "F16": _Layout(np.dtype("<u2"), 0x7FFF, 0x7C00),
    "BF16": _Layout(np.dtype("<u2"), 0x7FFF, 0x7F80),
}


@dataclass(frozen=True, slots=True)
class BadWeight:
    """A tensor with elements that are not finite."""

    name: str
    file: str
    num_elements: int
    num_nan: int
    num_inf: int


class NonFiniteCounter:
    """Counts NaN and infinity in the bytes of a tensor, given piece by piece.

    `dtype` is F32, F16 or BF16, little-endian. A piece may end in the middle of an element.
    """

    def __init__(self, dtype: str) -> None:
        self.num_nan = 0
        self.num_inf = 0
        self._layout = _LAYOUTS[dtype]
        self._rest = b""

    def update(self, piece: bytes | memoryview) -> None:
        """Count in the next bytes of the tensor."""
        if self._rest:
            piece = self._rest + bytes(piece)
        rest = len(piece) % self._layout.twin.itemsize
        self._rest = bytes(piece[len(piece) - rest :])
        whole = piece[: len(piece) - rest]
        if len(whole):
            self._count(np.frombuffer(whole, self._layout.twin))

    def _count(self, bits: NDArray[np.unsignedinteger]) -> None:
        # A float is not finite when all exponent bits are set; NaN when others are, too.
        magnitudes = bits & bits.dtype.type(self._layout.magnitude)
        if int(magnitudes.max()) < self._layout.exponent:
            return
        self.num_inf += int(np.count_nonzero(magnitudes == self._layout.exponent))
        self.num_nan += int(np.count_nonzero(magnitudes > self._layout.exponent))


def find_bad_weights(checkpoint: Checkpoint, progress: Progress | None = None) -> list[BadWeight]:
    """Read every weight once, a chunk at a time, and list the tensors that are not all finite."""
    progress = progress or Progress()
    bad = []
    with progress.stage("check weights") as stage:
        for name, tensor in checkpoint.tensors.items():
            counter = NonFiniteCounter(tensor.dtype)
            for chunk in tensor.chunks():
                counter.update(chunk)
            if counter.num_nan or counter.num_inf:
                file = tensor.file.name
                bad.append(BadWeight(name, file, tensor.size, counter.num_nan, counter.num_inf))
        stage.bytes = sum(tensor.nbytes for tensor in checkpoint.tensors.values())
    return bad
