"""Static key/value caches: allocated once as zeros, then written in place by every call."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quatrain.runtime.errors import RequestError
from quatrain.runtime.host_memory import HostMemory, allocate_host, allocate_together
from quatrain.runtime.manifest import ITEM_BYTES, CacheLayout

__all__ = [
    "ITEM_BYTES",
    "CacheTensor",
    "KVCache",
    "MemoryBlock",
    "Shape",
    "allocate_cache",
    "allocate_tensors",
    "list_shapes",
    "round_up",
]

LENGTH_STEP = 32

Shape = tuple[int, int, int, int]
"""Of a cache: `[batch, num_heads, positions, head_dim]`."""


class MemoryBlock(Protocol):
    """Zeroed memory of the host or of a device, freed with this object."""

    @property
    def address(self) -> int:
        """Where it begins, on the device it belongs to."""
        ...


@dataclass(frozen=True, slots=True)
class CacheTensor:
    """The keys or the values of one layer."""

    name: str
    dtype: str
    shape: Shape
    block: MemoryBlock

    @property
    def array(self) -> NDArray[np.float32]:
        """The cache itself, for a float32 cache in host memory; a `TypeError` for any other."""
        if not isinstance(self.block, HostMemory) or self.dtype != "float32":
            raise TypeError(f"{self.name} is {self.dtype} in {type(self.block).__name__}")
        return self.block.bytes.view(np.float32).reshape(self.shape)


class KVCache:
    """The caches of all layers of a batch, by the name of the graph input they are bound to.

    They begin as zeros: padding and masked positions are read, and 0 * NaN would be NaN. They
    never need clearing, since a mask hides whatever lies behind a row's live length. `capacity`
    counts tokens, of which one may take several positions.
    """

    def __init__(self, batch_size: int, capacity: int, tensors: dict[str, CacheTensor]) -> None:
        self.batch_size = batch_size
        self.capacity = capacity
        self.tensors = tensors
        self.version = 0
        """Changes whenever tensors are somewhere else than before."""

    def fit(self, live: int, written: int) -> int:
        """Make room for a call that attends to the tokens before `live` and writes those before
        `written`; the length that its mask must have."""
        return min(self.capacity, round_up(live))

    def match(self, length: int) -> None:
        """Be as a mask of exactly that length needs it; a static cache is as any mask needs it."""

    @property
    def num_bytes(self) -> int:
        """Bytes set aside, touched or not."""
        shapes = ((tensor.shape, tensor.dtype) for tensor in self.tensors.values())
        return sum(math.prod(shape) * ITEM_BYTES[dtype] for shape, dtype in shapes)


def round_up(length: int) -> int:
    """Live lengths are rounded up, so that shapes repeat from one token to the next and nothing has
    to be bound again; the positions added are masked."""
    return -(-length // LENGTH_STEP) * LENGTH_STEP


def allocate_cache(
    layout: CacheLayout,
    batch_size: int,
    dtype: str,
    allocate: Callable[[int], MemoryBlock] = allocate_host,
) -> KVCache:
    """Caches for `batch_size` sequences; raises `RequestError` if memory does not suffice."""
    tensors = {}
    for name, shape in list_shapes(layout, batch_size, layout.capacity).items():
        num_bytes = math.prod(shape) * ITEM_BYTES[dtype]
        with _refusing(shape, name, num_bytes):
            block = allocate(num_bytes)
        tensors[name] = CacheTensor(name, dtype, shape, block)
    return KVCache(batch_size, layout.capacity, tensors)


def allocate_tensors(shapes: Mapping[str, Shape]) -> dict[str, CacheTensor]:
    """Zeros of float32 in host memory that will be used whole; raises `RequestError` if memory does
    not suffice."""
    sizes = [math.prod(shape) * ITEM_BYTES["float32"] for shape in shapes.values()]
    with _refusing(next(iter(shapes.values())), "the caches", sum(sizes)):
        blocks = allocate_together(sizes)
    return {
        name: CacheTensor(name, "float32", shape, block)
        for (name, shape), block in zip(shapes.items(), blocks, strict=True)
    }


def list_shapes(layout: CacheLayout, batch_size: int, length: int) -> dict[str, Shape]:
    """The shape of every cache for sequences of `length` tokens, by name."""
    shapes: dict[str, Shape] = {}
    for layer in layout.layers:
        positions = length * layout.positions(layer) // layout.capacity
        shape = (batch_size, layer.num_heads, positions, layer.head_dim)
        shapes |= dict.fromkeys((f"key_cache.{layer.layer}", f"value_cache.{layer.layer}"), shape)
    return shapes


@contextmanager
def _refusing(shape: Shape, what: str, num_bytes: int) -> Iterator[None]:
    """Say what memory does not suffice for: `what`, a cache of that shape or several like it."""
    try:
        yield
    except (MemoryError, OSError) as error:  # mmap's own way to say so is an OSError
        raise RequestError(
            f"a cache for {shape[0]} sequences of {shape[2]} positions",
            f"no memory for {what} ({num_bytes} bytes)",
            "use a smaller batch, shorter sequences, or export with a smaller --max-seq-len",
        ) from error
