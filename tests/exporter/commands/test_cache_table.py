"""The caches of a bundle, neighbours that are alike in one row."""

from typing import Literal

from quatrain.exporter.commands.cache_table import make_cache_table
from quatrain.runtime.manifest import CacheLayer, CacheLayout


def layer(
    index: int,
    graph: str = "decoder",
    num_heads: int = 2,
    unit: Literal["tokens", "rows"] = "tokens",
    window: int | None = None,
) -> CacheLayer:
    return CacheLayer(
        layer=index, graph=graph, num_heads=num_heads, head_dim=4, unit=unit, window=window
    )


def test_alike_neighbours_share_a_row() -> None:
    layers = [
        layer(0, num_heads=8),
        layer(1, num_heads=8),
        layer(2, unit="rows", window=16),
        layer(3, unit="rows"),
        layer(4, num_heads=8),
    ]
    table = make_cache_table(CacheLayout(capacity=104, layers=layers, rows_per_token=4))
    assert table.rows == [
        ("0-1", "tokens", "8", "4", "all", "104"),
        ("2", "rows", "2", "4", "16", "416"),
        ("3", "rows", "2", "4", "all", "416"),
        ("4", "tokens", "8", "4", "all", "104"),
    ]
    assert table.columns[3] == "head_dim"


def test_graphs_make_no_difference() -> None:
    layers = [layer(0, "segment_0"), layer(1, "segment_1"), layer(2, "segment_1")]
    table = make_cache_table(CacheLayout(capacity=8, layers=layers))
    assert table.rows == [("0-2", "tokens", "2", "4", "all", "8")]
