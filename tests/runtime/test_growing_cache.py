"""Caches that grow with the sequences in them."""

import msgspec
import pytest

from quatrain.runtime import kv_cache
from quatrain.runtime.errors import RequestError
from quatrain.runtime.growing_cache import GrowingCache
from quatrain.runtime.manifest import CacheLayer, CacheLayout

LAYERS = [
    CacheLayer(layer=0, graph="decoder", num_heads=2, head_dim=8, unit="rows"),
    CacheLayer(layer=1, graph="decoder", num_heads=6, head_dim=8),
]
LAYOUT = CacheLayout(capacity=1000, layers=LAYERS, rows_per_token=3)


def test_begins_short_and_keeps_what_it_holds() -> None:
    cache = GrowingCache(LAYOUT, 2)
    tensors = cache.tensors
    assert tensors["key_cache.0"].shape == (2, 2, 96, 8)
    assert tensors["value_cache.1"].shape == (2, 6, 32, 8)
    tensors["key_cache.0"].array[...] = 1
    tensors["value_cache.1"].array[1, 5] = 2
    version = cache.version
    assert cache.fit(33, 33) == 64
    assert cache.version > version
    assert cache.tensors is tensors  # whoever holds the dictionary sees the new ones
    keys = tensors["key_cache.0"].array
    assert keys.shape == (2, 2, 192, 8)
    assert (keys[:, :, :96] == 1).all()
    assert not keys[:, :, 96:].any()
    assert (tensors["value_cache.1"].array[1, 5, :32] == 2).all()
    assert tensors["value_cache.1"].array.sum() == 2 * 32 * 8


def test_grows_in_proportion_and_never_beyond_its_capacity() -> None:
    cache = GrowingCache(LAYOUT, 1)
    assert cache.fit(512, 512) == 544  # a sixteenth more than the call takes, for what comes next
    version = cache.version
    assert cache.fit(544, 544) == cache.fit(1, 1) == 544
    assert cache.version == version
    assert cache.fit(545, 545) == 640  # and at least an eighth more than it was, in whole steps
    assert cache.fit(995, 995) == 1000


def test_a_capacity_below_the_first_step_is_all_there_is() -> None:
    """Graphs exported with a --max-seq-len below 24: the mask ends at the capacity, too."""
    cache = GrowingCache(msgspec.structs.replace(LAYOUT, capacity=8), 1)
    assert cache.tensors["key_cache.0"].shape[2] == 24
    assert cache.fit(1, 1) == cache.fit(8, 8) == 8


def test_padding_that_is_written_counts_too() -> None:
    """A row that waits further on is written behind its end, though nobody looks there."""
    cache = GrowingCache(LAYOUT, 2)
    assert cache.fit(20, 90) == 96


def test_matches_a_mask_exactly() -> None:
    cache = GrowingCache(LAYOUT, 1)
    cache.match(7)
    assert cache.tensors["key_cache.0"].shape[2] == 21
    cache.match(5)
    assert cache.tensors["value_cache.1"].shape[2] == 5


def test_want_of_memory_leaves_the_cache_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = GrowingCache(LAYOUT, 1)
    before, version = dict(cache.tensors), cache.version

    def refuse(sizes: list[int]) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(kv_cache, "allocate_together", refuse)
    with pytest.raises(RequestError, match=r"no memory for the caches"):
        cache.fit(500, 500)
    assert cache.tensors == before
    assert (cache.length, cache.version) == (32, version)
