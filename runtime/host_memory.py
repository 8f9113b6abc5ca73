"""Zeroed memory of the host: each piece by itself, or several together on huge pages."""

import mmap
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from quatrain.runtime.huge_pages import PAGE_BYTES

__all__ = ["HostMemory", "allocate_host", "allocate_together"]

# Pieces of memory are freed a map at a time: whoever moves many from old maps to new ones has the
# old ones and about so much more. Larger ones were no faster.
_MAP_BYTES = 32 << 20
_ALIGNMENT = 64

# Where there is a choice, pages of this process alone: shared ones live in a file system.
_PRIVATE = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
)


class HostMemory:
    """Zeroed host memory; the system hands out its pages when they are first written.

    It comes from the system directly: the allocator would give memory used before, and zeroing
    that takes longer than a short prompt.
    """

    def __init__(self, content: NDArray[np.uint8]) -> None:
        self.bytes = content

    @property
    def address(self) -> int:
        """Where it begins."""
        return self.bytes.ctypes.data


def allocate_host(num_bytes: int) -> HostMemory:
    """Zeroed, aligned memory that costs nothing where nobody writes, so on no huge pages.

    `OSError` where the system has none.
    """
    # Anonymous maps begin on a page, so any vector register is aligned; none is of size 0.
    return HostMemory(np.frombuffer(mmap.mmap(-1, max(num_bytes, 1), **_PRIVATE), np.uint8))


def allocate_together(sizes: Sequence[int]) -> list[HostMemory]:
    """Zeroed, aligned memory of these numbers of bytes, on huge pages where the system gives them.

    Neighbours share maps, since a piece by itself may be smaller than a page. A huge page is there
    as a whole once any of it is written: only for what will be used whole. What is too small for
    one takes no more memory than by itself.

    `OSError` where the system has none.
    """
    return [piece for group in _group_sizes(sizes) for piece in _allocate_group(group)]


def _group_sizes(sizes: Sequence[int]) -> Iterator[list[int]]:
    group: list[int] = []
    for size in sizes:
        group.append(size)
        if sum(group) >= _MAP_BYTES:
            yield group
            group = []
    if group:
        yield group


def _allocate_group(sizes: Sequence[int]) -> list[HostMemory]:
    """One map for all."""
    rounded = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
    ends = np.cumsum(rounded)
    content = _map_pages(int(ends[-1]))
    starts = [0, *ends[:-1].tolist()]
    return [
        HostMemory(content[start : start + size]) for start, size in zip(starts, sizes, strict=True)
    ]


def _map_pages(num_bytes: int) -> NDArray[np.uint8]:
    """Memory that begins on a huge page, if it is as large as one; its end is on small ones."""
    if num_bytes < PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return allocate_host(num_bytes).bytes
    pages = mmap.mmap(-1, num_bytes + PAGE_BYTES, **_PRIVATE)
    content = np.frombuffer(pages, np.uint8)
    start = -content.ctypes.data % PAGE_BYTES
    with suppress(OSError):  # a kernel without them
        pages.madvise(mmap.MADV_HUGEPAGE, 0, start + num_bytes)
    return content[start : start + num_bytes]
