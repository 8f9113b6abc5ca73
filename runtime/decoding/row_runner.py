"""The runtime's one primitive: run rows at positions, attending to what is complete."""

from collections.abc import Iterator, Sequence
from operator import add, sub
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from quatrain.runtime.decoding.row_source import RowSource
from quatrain.runtime.kv_cache import KVCache
from quatrain.runtime.session import Arrays, BoundGraph, Sizes

__all__ = ["RowCall", "RowRunner"]


class RowCall(NamedTuple):
    """One call that was made: batch row b ran positions `starts[b] .. starts[b] + counts[b] - 1`.

    `outputs` are the graph's own buffers. Where a result was wanted of the last position only,
    it is at index 0 of the outputs axis, and has no meaning for a row with count 0.
    """

    starts: list[int]
    counts: list[int]
    outputs: Arrays


class RowRunner:
    """Runs one graph over a run of consecutive positions per batch row.

    Rows of a batch need not agree in where they start or how much they run. A row with less than
    the others is padded with positions behind its own run: what they write to the cache is
    finite, lies behind the row's live length, and is overwritten before any mask shows it. Hence
    no call may be longer than the space left behind the longest row.

    Args:
        graph: A graph with layers, bound to the batch's cache.
        cache: That cache.
        source: What its first input is at each position.
        chunk: Most positions of one call.
        documents: The first position that each may attend to, int64 [B, C] (None: position 0).
    """

    def __init__(
        self,
        graph: BoundGraph,
        cache: KVCache,
        source: RowSource,
        chunk: int,
        documents: NDArray[np.int64] | None = None,
    ) -> None:
        self._graph = graph
        self._cache = cache
        self._documents = documents
        self._source = source
        self._input_name = source.input_name
        self._chunk = chunk
        self._capacity = source.capacity
        self._positions = np.arange(self._capacity)
        self._visible = _visible_keys(self._capacity)

    def run(
        self,
        starts: Sequence[int],
        ends: Sequence[int],
        available: Sequence[int] | None = None,
        *,
        every_row: bool = False,
    ) -> Iterator[RowCall]:
        """Run each row from its start to its end, in as many calls as it takes.

        Args:
            starts: First position of each row; all before it are complete.
            ends: One past its last position; equal to its start where a row has nothing to run.
            available: How far a row may go where it would otherwise be padding (default: ends).
            every_row: Ask for the results of all positions instead of each row's last one.
        """
        starts = list(starts)
        available = available or ends
        while True:
            needed = max(map(sub, ends, starts))
            if needed <= 0:
                return
            rows = min(needed, self._chunk, self._capacity - max(starts))
            counts = [min(rows, left) for left in map(sub, available, starts)]
            self._fill(starts, counts, rows, every_row)
            yield RowCall(starts, counts, self._graph.execute())
            starts = list(map(add, starts, counts))

    def _fill(self, starts: list[int], counts: list[int], rows: int, every_row: bool) -> None:
        live = max(s + n for s, n in zip(starts, counts, strict=True) if n)
        length = self._cache.fit(live, max(starts) + rows)
        sizes = Sizes(len(starts), rows, length, rows if every_row else 1)
        inputs = self._graph.prepare(sizes)
        positions, write_indices = inputs["position_ids"], inputs["write_indices"]
        mask, output_rows = inputs["attention_mask"], inputs["output_rows"]
        self._source.fill(starts, rows, inputs[self._input_name])
        for b, start in enumerate(starts):
            stop = start + rows
            write_indices[b] = start
            positions[b] = self._positions[start:stop]
            mask[b, 0] = self._visible[start:stop, :length]
            if self._documents is not None:
                firsts = self._documents[b, start:stop, None]
                mask[b, 0] &= self._positions[:length] >= firsts
            output_rows[b] = self._positions[:rows] if every_row else max(counts[b] - 1, 0)


def _visible_keys(capacity: int) -> NDArray[np.bool_]:
    """The causal mask [C, C], row p true up to column p, as a view of 2C - 1 bytes."""
    steps = np.arange(1 - capacity, capacity) <= 0
    return as_strided(steps[capacity - 1 :], (capacity, capacity), (-1, 1), writeable=False)
