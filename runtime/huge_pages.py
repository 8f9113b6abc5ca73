"""Huge pages under the weights: decoding reads all of them for every token.

With 4 KiB pages a model of half a gigabyte has more pages than a processor can keep translations
of, and the look-ups cost a third of the time of a step (`benchmarks/README.md`). Linux gives huge
pages on request only in its usual setting (`madvise`), and ONNX Runtime does not ask.
"""

import ctypes
import logging
import mmap
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["huge_pages"]

logger = logging.getLogger(__name__)

_PAGE_BYTES = 2 << 20
# Linux 6.1: make huge pages of what is there already (asm-generic/mman-common.h).
_MADV_COLLAPSE = 25
_MAPS = "/proc/self/maps"


@contextmanager
def huge_pages() -> Iterator[None]:
    """Move the anonymous memory that the block allocates to huge pages, where Linux lets us.

    Only a hint: where it is not to be had (another system, an older kernel) nothing changes.
    """
    before = set(_find_regions())
    yield
    for start, end in set(_find_regions()) - before:
        _advise(start, end)


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
        if flags == "rw-p" and inode == "0" and end - start >= 2 * _PAGE_BYTES:
            yield start, end


def _advise(start: int, end: int) -> None:
    """Ask for huge pages on the whole ones within the range."""
    start = -(-start // _PAGE_BYTES) * _PAGE_BYTES
    length = end // _PAGE_BYTES * _PAGE_BYTES - start
    if length <= 0 or not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for advice in (mmap.MADV_HUGEPAGE, _MADV_COLLAPSE):
        if madvise(start, length, advice):
            logger.debug("madvise(%d) of %d bytes: errno %d", advice, length, ctypes.get_errno())
            return
