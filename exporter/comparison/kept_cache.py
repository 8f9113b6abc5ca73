"""Reads the caches of a model after a run, wherever they are."""

import numpy as np
from numpy.typing import NDArray

from quatrain.runtime.host_memory import HostMemory
from quatrain.runtime.kv_cache import KVCache
from quatrain.runtime.manifest import CacheLayer
from quatrain.runtime.session import Model

__all__ = ["read_cache"]


def read_cache(model: Model, cache: KVCache, num_tokens: int) -> dict[str, NDArray[np.float32]]:
    """Keys and values of every layer, [B, heads, positions, D], as far as `num_tokens` go.

    Those in a device's memory are left out: what they lead to is seen in everything else.
    """
    layout = model.manifest.cache

    def count(layer: CacheLayer) -> int:
        return num_tokens * (layout.rows_per_token if layer.unit == "rows" else 1)

    return {
        name: cache.tensors[name].array[:, :, : count(layer)]
        for layer in layout.layers
        for name in (f"key_cache.{layer.layer}", f"value_cache.{layer.layer}")
        if isinstance(cache.tensors[name].block, HostMemory)
    }
