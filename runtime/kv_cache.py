"""Static key/value caches: allocated once as zeros, then written in place by every call."""

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quatrain.runtime.errors import RequestError
from quatrain.runtime.manifest import ITEM_BYTES, CacheLayout

__all__ = [
    "ITEM_BYTES",
    "CacheTensor",
    "HostMemory",
    "KVCache",
    "MemoryBlock",
    "allocate_cache",
    "allocate_host",
    "allocate_tensor",
    "round_up",
]

LENGTH_STEP = 32

# Where there is a choice, pages of this process alone: shared ones live in a file system.
_PRIVATE = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
)


class MemoryBlock(Protocol):
    """Zeroed memory of the host or of a device, freed with this object."""

    @property
    def address(self) -> int:
        """Where it begins, on the device it belongs to."""
        ...


class HostMemory:
    """Zeroed host memory; the system hands out its pages when they are first written.

    It comes from the system directly: the allocator would give memory used before, and zeroing
    that takes longer than a short prompt.
    """

    def __init__(self, num_bytes: int) -> None:
        # Anonymous maps begin on a page, so any vector register is aligned; none is of size 0.
        self.bytes = np.frombuffer(mmap.mmap(-1, max(num_bytes, 1), **_PRIVATE), np.uint8)

    @property
    def address(self) -> int:
        """Where it begins."""
        return self.bytes.ctypes.data


def allocate_host(num_bytes: int) -> MemoryBlock:
    """Zeroed, aligned host memory."""
    return HostMemory(num_bytes)


@dataclass(frozen=True, slots=True)
class CacheTensor:
    """The keys or the values of one layer: `[batch, num_heads, positions, head_dim]`."""

    name: str
    dtype: str
    shape: tuple[int, int, int, int]
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
        return sum(int(np.prod(shape)) * ITEM_BYTES[dtype] for shape, dtype in shapes)


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
    for layer in layout.layers:
        shape = (batch_size, layer.num_heads, layout.positions(layer), layer.head_dim)
        for name in (f"key_cache.{layer.layer}", f"value_cache.{layer.layer}"):
            tensors[name] = allocate_tensor(name, dtype, shape, allocate)
    return KVCache(batch_size, layout.capacity, tensors)


def allocate_tensor(
    name: str,
    dtype: str,
    shape: tuple[int, int, int, int],
    allocate: Callable[[int], MemoryBlock] = allocate_host,
) -> CacheTensor:
    """Zeros; raises `RequestError` if memory does not suffice."""
    num_bytes = int(np.prod(shape)) * ITEM_BYTES[dtype]
    try:
        return CacheTensor(name, dtype, shape, allocate(num_bytes))
    except (MemoryError, OSError) as error:  # mmap's own way to say so is an OSError
        raise RequestError(
            f"a cache for {shape[0]} sequences of {shape[2]} positions",
            f"no memory for {name} ({num_bytes} bytes)",
            "use a smaller batch, shorter sequences, or export with a smaller --max-seq-len",
        ) from error
