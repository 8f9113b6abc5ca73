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


def test_a_token_takes_as_many_positions_as_its_layer_has_rows() -> None:
    layers = [
        CacheLayer(layer=0, graph="decoder", num_heads=2, head_dim=8, unit="rows"),
        # A layer within streams: positions are tokens, and each stream has heads of its own.
        CacheLayer(layer=1, graph="decoder", num_heads=2 * 3, head_dim=8, unit="tokens"),
        CacheLayer(layer=2, graph="decoder", num_heads=1, head_dim=4, unit="rows", window=5),
    ]
    layout = CacheLayout(capacity=40, layers=layers, rows_per_token=3)
    cache = allocate_cache(layout, 2, "float32")
    assert {name: tensor.shape for name, tensor in cache.tensors.items()} == {
        "key_cache.0": (2, 2, 120, 8),
        "value_cache.0": (2, 2, 120, 8),
        "key_cache.1": (2, 6, 40, 8),
        "value_cache.1": (2, 6, 40, 8),
        "key_cache.2": (2, 1, 120, 4),
        "value_cache.2": (2, 1, 120, 4),
    }
    assert cache.tensors["key_cache.0"].array.shape == (2, 2, 120, 8)
    assert cache.capacity == 40
    assert cache.num_bytes == 2 * 2 * (2 * 120 * 8 + 6 * 40 * 8 + 120 * 4) * 4


def test_tokens_of_one_row_need_nothing_more() -> None:
    layer = CacheLayer(layer=0, graph="decoder", num_heads=2, head_dim=8, unit="rows")
    cache = allocate_cache(CacheLayout(capacity=40, layers=[layer]), 1, "float32")
    assert cache.tensors["key_cache.0"].shape == (1, 2, 40, 8)


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

    layer = CacheLayer(layer=0, graph="decoder", num_heads=2, head_dim=8, unit="rows")
    layout = CacheLayout(capacity=40, layers=[layer], rows_per_token=3)
    with pytest.raises(RequestError, match="1 sequences of 120 positions") as caught:
        allocate_cache(layout, 1, "float32", refuse)
    assert caught.value.found == "no memory for key_cache.0 (7680 bytes)"


def test_large_caches_cost_nothing_until_written() -> None:
    layer = CacheLayer(layer=0, graph="decoder", num_heads=8, head_dim=128)
    layout = CacheLayout(capacity=1 << 20, layers=[layer])
    cache = allocate_cache(layout, 1, "float32")  # 8 GiB
    assert cache.tensors["value_cache.0"].array[0, 7, -1].sum() == np.float32(0)
