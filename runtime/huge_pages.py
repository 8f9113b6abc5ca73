"""Huge pages under the weights: decoding reads all of them for every token.

With 4 KiB pages a model of half a gigabyte has more pages than a processor keeps translations of,
and looking those up takes a quarter of a step (`benchmarks/results.md`). Linux in its usual setting
(`madvise`) gives huge pages on request only, and ONNX Runtime does not ask.
"""

import ctypes
import logging
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

__all__ = ["PAGE_BYTES", "huge_pages"]

logger = logging.getLogger(__name__)

PAGE_BYTES = 2 << 20
_SMALL_PAGES = PAGE_BYTES // mmap.PAGESIZE
# A huge page that is mostly holes would cost more memory than it saves time.
_MIN_RESIDENT = 0.5
# Linux 6.1: make huge pages of what is there already (asm-generic/mman-common.h).
_MADV_COLLAPSE = 25
_MAPS = "/proc/self/maps"


@contextmanager
def huge_pages() -> Iterator[None]:
    """Move the anonymous memory that the block allocates to huge pages, where Linux lets us.

    Memory that the block freed goes back to the system first. Only a hint: where it is not to be
    had (another system, an older kernel) nothing changes.
    """
    before = set(_find_regions())
    yield
    libc = _open_libc()
    if libc is None:
        return
    # Weights are converted while a session loads, and the allocator keeps what that took.
    libc.malloc_trim(0)
    for start, end in set(_find_regions()) - before:
        _collapse_region(libc, -(-start // PAGE_BYTES) * PAGE_BYTES, end)


def _open_libc() -> ctypes.CDLL | None:
    """The C library, if it is glibc on a Linux with huge pages."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.malloc_trim.argtypes = (ctypes.c_size_t,)
        libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    except (OSError, AttributeError) as error:
        logger.debug("no huge pages: %s", error)
        return None
    return libc if hasattr(mmap, "MADV_HUGEPAGE") else None


def _find_regions() -> Iterator[tuple[int, int]]:
    """Large private anonymous mappings of this process, as addresses [start, end)."""
    try:
        with open(_MAPS, encoding="ascii", errors="replace") as file:
            lines = file.readlines()
    except OSError:
        return
    for line in lines:
        span, flags, _, _, inode, *_ = line.split(maxsplit=5)
        start, end = (int(address, 16) for address in span.split("-"))
        if flags == "rw-p" and inode == "0" and end - start >= 2 * PAGE_BYTES:
            yield start, end


def _collapse_region(libc: ctypes.CDLL, start: int, end: int) -> None:
    """Ask for huge pages wherever most of one is in use; `start` lies on a huge page."""
    count = (end - start) // PAGE_BYTES
    if count <= 0:
        return
    used = _find_used(libc, start, count)
    for is_used, run in groupby(range(count), key=lambda index: bool(used[index])):
        indices = list(run)
        address, length = start + indices[0] * PAGE_BYTES, len(indices) * PAGE_BYTES
        for advice in (mmap.MADV_HUGEPAGE, _MADV_COLLAPSE) if is_used else ():
            if libc.madvise(address, length, advice):
                logger.debug("madvise(%d), %d bytes: %d", advice, length, ctypes.get_errno())
                break


def _find_used(libc: ctypes.CDLL, start: int, count: int) -> NDArray[np.bool_]:
    """Which of `count` huge pages have most of their memory in use, bool [count]."""
    resident = np.zeros(count * _SMALL_PAGES, np.uint8)
    if libc.mincore(start, count * PAGE_BYTES, resident.ctypes.data):
        return np.zeros(count, np.bool_)
    in_use = (resident.reshape(count, _SMALL_PAGES) & 1).mean(axis=1)
    return np.asarray(in_use >= _MIN_RESIDENT)
