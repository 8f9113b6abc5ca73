"""Caches that grow with the sequences in them, for graphs that read a cache whole.

Reading only the live part of a larger cache means to copy it, layer by layer and token by token:
behind 2048 tokens that took longer than attention itself (benchmarks/results.md). A cache that is
hardly longer than what it holds can be read as it is, and copying it when it grows is rare.
"""

from quatrain.runtime.kv_cache import KVCache, allocate_tensors, list_shapes, round_up
from quatrain.runtime.manifest import CacheLayout

__all__ = ["GrowingCache"]

# What a cache grows by at least, and what it has beyond a call that makes it grow, so that the step
# behind a prompt does not make it grow again: attention reads that much for nothing, at most.
_GROWTH, _SPARE = 1 / 8, 1 / 16


class GrowingCache(KVCache):
    """Caches of float32 in host memory, all of `length` tokens, which the mask must have, too."""

    def __init__(self, layout: CacheLayout, batch_size: int) -> None:
        super().__init__(batch_size, layout.capacity, {})
        self.length = 0
        self._layout = layout
        self._resize(min(self.capacity, round_up(1)))

    def fit(self, live: int, written: int) -> int:
        """Make room for a call; see `KVCache.fit`."""
        needed = max(live, written)
        if needed > self.length:
            wanted = max(needed * (1 + _SPARE), self.length * (1 + _GROWTH))
            self._resize(min(self.capacity, round_up(int(wanted))))
        return self.length

    def match(self, length: int) -> None:
        """Have exactly that length, keeping what fits."""
        if length != self.length:
            self._resize(length)

    def _resize(self, length: int) -> None:
        shapes = list_shapes(self._layout, self.batch_size, length)
        for name, tensor in allocate_tensors(shapes).items():
            old = self.tensors.get(name)
            if old is not None:
                kept = min(tensor.shape[2], old.shape[2])
                tensor.array[:, :, :kept] = old.array[:, :, :kept]
            # Which frees the old one, as soon as all that shared its memory have been moved.
            self.tensors[name] = tensor
        self.length = length
        self.version += 1
