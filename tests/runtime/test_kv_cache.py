"""Static caches."""

import numpy as np
import pytest

from quatrain.runtime.errors import RequestError
from quatrain.runtime.kv_cache import MemoryBlock, allocate_cache
from quatrain.runtime.manifest import CacheLayer, CacheLayout

LAYOUT = CacheLayout(
    capacity=40,
    layers=[
        CacheLayer(layer=0, graph="decoder", num_heads=2, head_dim=8),
        CacheLayer(layer=1, graph="decoder", num_heads=3, head_dim=4),
    ],
)


def test_caches_are_zeros_of_their_shape() -> None:
    cache = allocate_cache(LAYOUT, 3, "float32")
    assert list(cache.tensors) == ["key_cache.0", "value_cache.0", "key_cache.1", "value_cache.1"]
    assert cache.tensors["key_cache.0"].array.shape == (3, 2, 40, 8)
    assert cache.tensors["value_cache.1"].array.shape == (3, 3, 40, 4)
    assert not any(tensor.array.any() for tensor in cache.tensors.values())
    assert cache.num_bytes == 2 * 3 * 40 * (2 * 8 + 3 * 4) * 4


def test_memory_is_aligned_and_shared() -> None:
    cache = allocate_cache(LAYOUT, 1, "float32")
    tensor = cache.tensors["key_cache.1"]
    assert tensor.block.address % 64 == 0
    assert tensor.array.ctypes.data == tensor.block.address
    tensor.array[0, 2, 39, 3] = 7
    assert tensor.array[0, 2, 39, 3] == 7


def test_half_precision_takes_half_the_bytes() -> None:
    half = allocate_cache(LAYOUT, 1, "bfloat16")
    assert half.num_bytes * 2 == allocate_cache(LAYOUT, 1, "float32").num_bytes
    with pytest.raises(TypeError, match="bfloat16"):
        _ = half.tensors["key_cache.0"].array


def test_too_little_memory_is_the_users_to_fix() -> None:
    def refuse(num_bytes: int) -> MemoryBlock:
        raise MemoryError

    with pytest.raises(RequestError, match=r"no memory for key_cache\.0"):
        allocate_cache(LAYOUT, 1, "float32", refuse)


def test_large_caches_cost_nothing_until_written() -> None:
    layer = CacheLayer(layer=0, graph="decoder", num_heads=8, head_dim=128)
    layout = CacheLayout(capacity=1 << 20, layers=[layer])
    cache = allocate_cache(layout, 1, "float32")  # 8 GiB
    assert cache.tensors["value_cache.0"].array[0, 7, -1].sum() == np.float32(0)
