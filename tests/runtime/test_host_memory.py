"""Zeroed memory, of which several pieces may share huge pages."""

import numpy as np
import pytest

from quatrain.runtime.host_memory import allocate_host, allocate_together

MIB = 1 << 20


@pytest.mark.parametrize(
    "sizes", [[1], [100, 7, 64], [3 * MIB + 4, 5, 3 * MIB], [20 * MIB] * 4], ids=str
)
def test_pieces_are_zeros_aligned_and_apart(sizes: list[int]) -> None:
    pieces = allocate_together(sizes)

    assert [piece.bytes.size for piece in pieces] == sizes
    assert all(piece.address % 64 == 0 for piece in pieces)
    assert not any(piece.bytes.any() for piece in pieces)
    for number, piece in enumerate(pieces):
        piece.bytes[:] = number + 1
    for number, piece in enumerate(pieces):
        assert (piece.bytes == number + 1).all()


def test_what_is_as_large_as_a_huge_page_begins_on_one() -> None:
    first, second = allocate_together([3 * MIB, 3 * MIB])

    assert first.address % (2 * MIB) == 0
    assert second.address == first.address + 3 * MIB


def test_pieces_share_maps_up_to_a_size() -> None:
    """So that moving many pieces to new memory frees the old as it goes."""
    pieces = allocate_together([20 * MIB] * 4)

    maps = [id(find_map(piece.bytes)) for piece in pieces]
    assert maps[0] == maps[1] != maps[2] == maps[3]


def find_map(array: np.ndarray) -> object:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.base


def test_memory_that_nobody_writes_costs_nothing() -> None:
    """A static cache is as large as its capacity."""
    before = read_resident()
    memory = allocate_host(1 << 30)
    memory.bytes[:: 256 * MIB] = 1

    assert read_resident() - before < 32 * MIB


def read_resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096
