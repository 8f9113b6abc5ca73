"""Projections that multiply the same rows, so that one product can do for several.

Joining pays where products are short: with 4-bit weights a decoder of 135M takes 8.8 ms a step with
them apart and 7.6 ms joined, since threads meet at the end of each (benchmarks/results.md). Long
ones gain nothing, and weights that are not packed anyway would have to be copied to lie side by
side, so only quantized exports join.
"""

from collections.abc import Iterator
from itertools import islice

from quatrain.exporter.checkpoint.names import attention_name, feed_forward_name
from quatrain.exporter.decoder.live_rows import LayerRows, plan_live_rows
from quatrain.exporter.spec import DecoderSpec

__all__ = ["Joined", "list_projections"]

Joined = frozenset[tuple[str, ...]]
"""Names of weights [out, in] that become one operand [in, out + out + ...], in that order."""


def list_projections(spec: DecoderSpec) -> Iterator[tuple[str, ...]]:
    """The weights of attention and of feed-forward networks, together what can be joined: queries,
    keys and values, or the latter two where other rows attend than are attended to, and gate and
    up. Feed-forward networks whose weights an operator of ours reads are not among them."""
    banks = spec.feed_forward
    has_operator = banks is not None and banks.predictor_rank is not None
    for segment in spec.segments:
        for layer, rows in plan_live_rows(spec, segment).items():
            attention = [attention_name(layer, f"{part}_proj") for part in ("q", "k", "v", "o")]
            yield from _cut(attention, (3, 1) if _shares_rows(spec, layer, rows) else (1, 2, 1))
            if not has_operator:
                parts = ("gate_proj", "up_proj", "down_proj")
                yield from _cut([feed_forward_name(layer, part) for part in parts], (2, 1))


def _cut(names: list[str], sizes: tuple[int, ...]) -> Iterator[tuple[str, ...]]:
    """Names in a row, so many at a time."""
    rest = iter(names)
    return (tuple(islice(rest, size)) for size in sizes)


def _shares_rows(spec: DecoderSpec, layer: int, rows: LayerRows) -> bool:
    is_plain = spec.mirror_source(layer) is None
    # Of the rows that are wanted there are fewer than of those that keys are made of.
    return is_plain and rows.keys == rows.leaving
