"""Which rows each layer computes: those that something after it reads, and no others.

A token is n rows, but only its last stream predicts, and in a prompt only the last token's
prediction is wanted. Going back from there, a layer has to be fed with all rows only if attention
somewhere after it looks at them: cross-stream layers look at every row before a query, intra-stream
layers at the query's own stream, and KV-Mirror layers at what an earlier layer was fed with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from quatrain.exporter.spec import DecoderSpec

__all__ = ["LayerRows", "Rows", "list_streams", "plan_live_rows"]


class Rows(IntEnum):
    """A choice of rows, each within the next."""

    WANTED = 0
    """The last stream's row of each token whose result is asked for: [B, E]."""
    LAST = 1
    """The last stream's row of every token: [B, R]."""
    ALL = 2
    """Every stream's row of every token: [B, R * n]. The same as LAST for n = 1."""


@dataclass(frozen=True, slots=True)
class LayerRows:
    """The rows that enter a layer, those that keys and values are made of (LAST or ALL), and those
    that attend and leave."""

    entering: Rows
    keys: Rows
    leaving: Rows


def list_streams(num_streams: int, rows: Rows) -> range:
    """The streams that such rows are of."""
    return range(0 if rows == Rows.ALL else num_streams - 1, num_streams)


def plan_live_rows(
    spec: DecoderSpec, layers: Sequence[int], *, skip_dead_rows: bool = True
) -> dict[int, LayerRows]:
    """The rows of each of these layers, which are one graph.

    A graph that another one continues gives all rows, the last one those whose result is wanted.

    Args:
        skip_dead_rows: False for the plain reference, which computes every row in every layer.
    """
    if not skip_dead_rows:
        return dict.fromkeys(layers, LayerRows(Rows.ALL, Rows.ALL, Rows.ALL))
    ends_here = spec.backbone.num_hidden_layers - 1 in layers
    needed = Rows.WANTED if ends_here else Rows.ALL
    mirrored: dict[int, Rows] = {}
    plan: dict[int, LayerRows] = {}
    for layer in reversed(layers):
        leaving = needed
        own_stream = spec.num_streams > 1 and spec.is_intra_stream(layer)
        keys = Rows.LAST if own_stream and leaving < Rows.ALL else Rows.ALL
        source = spec.mirror_source(layer)
        if source is None:
            needed = max(needed, keys)
        else:
            mirrored[source] = max(keys, mirrored.get(source, Rows.WANTED))
        needed = max(needed, mirrored.get(layer, Rows.WANTED))
        plan[layer] = LayerRows(needed, keys, leaving)
    return dict(sorted(plan.items()))
