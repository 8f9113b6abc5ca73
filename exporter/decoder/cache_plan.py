"""The key/value cache of each layer: heads, unit and window, and what a token takes of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from quatrain.exporter.decoder.live_rows import LayerRows, Rows, plan_live_rows
from quatrain.exporter.spec import DecoderSpec

__all__ = ["LayerCache", "count_cache_elements", "fit_caches", "plan_caches"]


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys or values `[batch, num_heads, positions, head_dim]`.

    Intra-stream layers count positions in tokens and have their streams in the heads, stream s in
    heads s*Hkv .. s*Hkv + Hkv-1; cross-stream layers count positions in rows.
    """

    num_heads: int
    head_dim: int
    unit: Literal["tokens", "rows"]
    window: int | None
    rows_per_position: int

    def positions(self, capacity: int) -> int:
        """Positions that `capacity` tokens take."""
        return capacity * self.rows_per_position


def plan_caches(spec: DecoderSpec) -> dict[int, LayerCache]:
    """The cache of every decoder layer."""
    plans = [plan_live_rows(spec, layers) for layers in spec.segments]
    return {layer: cache for plan in plans for layer, cache in fit_caches(spec, plan).items()}


def fit_caches(spec: DecoderSpec, plan: Mapping[int, LayerRows]) -> dict[int, LayerCache]:
    """The cache of each layer in a plan of rows."""
    return {layer: _plan_cache(spec, layer, rows) for layer, rows in plan.items()}


def _plan_cache(spec: DecoderSpec, layer: int, rows: LayerRows) -> LayerCache:
    is_factorized = spec.is_intra_stream(layer)
    counts_rows = spec.num_streams > 1 and not is_factorized
    folded = spec.num_streams if is_factorized and rows.keys == Rows.ALL else 1
    return LayerCache(
        num_heads=folded * spec.backbone.num_key_value_heads,
        head_dim=spec.backbone.head_dim,
        unit="rows" if counts_rows else "tokens",
        window=spec.backbone.window(layer),
        rows_per_position=spec.num_streams if counts_rows else 1,
    )


def count_cache_elements(spec: DecoderSpec) -> int:
    """Numbers in the cache of one token: keys and values of all layers."""
    return sum(
        2 * cache.num_heads * cache.head_dim * cache.rows_per_position
        for cache in plan_caches(spec).values()
    )
