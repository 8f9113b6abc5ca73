"""What the reference says of a case: computed once for all of them, or after a runner's choices."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.checkpoint.checkpoint import Checkpoint
from quatrain.exporter.comparison.cases import Case
from quatrain.exporter.comparison.trace import (
    Trace,
    find_layer,
    list_tokens,
    match_shapes,
    split_tokens,
)
from quatrain.exporter.reference import ReferenceDecoder

__all__ = ["Expectation", "chose_alike"]

# Larger ones are read again for every run instead of being kept as float32.
_KEEP_MAX_BYTES = 1 << 30
_CHANNELS = "active_channels"


class Expectation:
    """The reference's side, over the token table `tokens` int64 [S, T].

    Which channels are active is decided by comparisons, so that a rounding error may turn one over
    and change everything behind it: in float32, too, where they are many. Sides are therefore
    followed in their choices: these are judged on their own, and the rest by what the reference
    computes with the same channels.
    """

    def __init__(self, checkpoint: Checkpoint, tokens: NDArray[np.int64]) -> None:
        size = sum(tensor.nbytes for tensor in checkpoint.tensors.values())
        self._num_streams = checkpoint.spec.num_streams
        self._reference = ReferenceDecoder(checkpoint, keep_weights=size <= _KEEP_MAX_BYTES)
        self._truth = split_tokens(self._reference.run(tokens), tokens.shape[1])
        self.selects = any(name.endswith(_CHANNELS) for name in self._truth)

    def of_case(self, case: Case) -> Trace:
        """Of the sequences of a case."""
        return {name: array[list(case.rows)] for name, array in self._truth.items()}

    def of_tokens(self, tokens: NDArray[np.int64]) -> Trace:
        """Of any others, int64 [B, L]."""
        return split_tokens(self._reference.run(tokens), tokens.shape[1])

    def following(self, tokens: NDArray[np.int64], found: Trace) -> Trace:
        """Of sequences [B, L], with the channels that `found` has for them."""
        chosen = {name: array for name, array in found.items() if name.endswith(_CHANNELS)}
        own: Mapping[str, NDArray[np.bool_]] = {}
        if any(array.shape[2] < self._num_streams for array in chosen.values()):
            own = self._reference.run(tokens, keep=lambda name: name.endswith(_CHANNELS))
        channels = {}
        for name, array in chosen.items():
            layer = find_layer(name)
            assert layer is not None
            channels[layer] = _impose(own.get(name), array)
        return split_tokens(self._reference.run(tokens, channels=channels), tokens.shape[1])


def chose_alike(case: Case, expected: Trace, found: Trace) -> bool:
    """Whether the same channels are active on both sides, in all that either computes of a case."""
    for name, array in found.items():
        if name.endswith(_CHANNELS) and name in expected:
            wanted, chosen = match_shapes(name, expected[name], array)
            valid = list_tokens(name, case.lengths, wanted.shape[1])
            if not np.array_equal(wanted[valid], chosen[valid] != 0):
                return False
    return True


def _impose(own: NDArray[np.bool_] | None, found: NDArray[np.float32]) -> NDArray[np.bool_]:
    """The choice found [B, L, rows, d_i] for all rows [B, L * n, d_i]: those that are not computed,
    since nothing reads them, keep the reference's own."""
    batch_size, length, rows, width = found.shape
    if own is None:
        return (found > 0).reshape(batch_size, length * rows, width)
    merged = own.reshape(batch_size, length, -1, width).copy()
    merged[:, :, -rows:] = found > 0
    return merged.reshape(own.shape)
