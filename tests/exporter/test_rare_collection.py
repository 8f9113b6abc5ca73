"""Garbage is collected as before once the block is left, however that happens."""

import gc

import pytest

from quatrain.exporter.rare_collection import collecting_rarely


def test_cycles_are_looked_for_less_often_in_the_block_alone() -> None:
    before = gc.get_threshold()
    with collecting_rarely():
        inside = gc.get_threshold()
    assert all(rare >= usual for rare, usual in zip(inside, before, strict=True))
    assert inside[0] > before[0]
    assert gc.get_threshold() == before


def test_an_error_leaves_nothing_changed() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="no"), collecting_rarely():
        raise ValueError("no")
    assert gc.get_threshold() == before
