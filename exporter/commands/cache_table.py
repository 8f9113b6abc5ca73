"""The key/value caches of a bundle as a table."""

from itertools import groupby
from typing import TYPE_CHECKING

from quatrain.exporter.table import Table

if TYPE_CHECKING:
    from quatrain.runtime.manifest import CacheLayer, CacheLayout

__all__ = ["make_cache_table"]


def make_cache_table(cache: "CacheLayout") -> Table:
    """One row for each run of neighbouring layers whose caches are alike."""

    def describe(layer: "CacheLayer") -> tuple[str, ...]:
        return (
            layer.unit,
            str(layer.num_heads),
            str(layer.head_dim),
            "all" if layer.window is None else str(layer.window),
            str(cache.positions(layer)),
        )

    rows = [
        (_name_layers([layer.layer for layer in run]), *facts)
        for facts, run in groupby(cache.layers, describe)
    ]
    columns = ("layers", "unit", "heads", "head_dim", "window", "positions")
    return Table("Caches", columns, rows, numeric=frozenset(columns[2:]))


def _name_layers(layers: list[int]) -> str:
    return str(layers[0]) if len(layers) == 1 else f"{layers[0]}-{layers[-1]}"
