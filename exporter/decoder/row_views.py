"""The rows of a call as each layer sees them: positions, masks, and where they go in the cache.

The host speaks of tokens only. A cross-stream layer sees n rows for each of them, row i*n + s being
stream s of token i; an intra-stream layer sees tokens; both may have to compute some rows only.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder

from quatrain.exporter.decoder.live_rows import Rows
from quatrain.exporter.spec import DecoderSpec

__all__ = ["HostInputs", "RowViews", "Unit"]

Unit = Literal["tokens", "rows"]


@dataclass(frozen=True, slots=True)
class HostInputs:
    """What the host says of a call, in tokens: `position_ids` int64 [B, R]; `attention_mask` bool
    [B, 1, R, L], True where a token may attend; `write_indices` int64 [B], the first cache position
    written; `output_rows` int64 [B, E], the tokens whose result is wanted."""

    position_ids: ir.Value
    attention_mask: ir.Value
    write_indices: ir.Value
    output_rows: ir.Value


class RowViews:
    """Every view of a graph's rows, made when first asked for and shared by all layers.

    `cos` and `sin` are the rotary tables [positions, D/2], in the compute type. Caches that are not
    static are as long as the mask, and read whole.
    """

    def __init__(
        self,
        op: OpBuilder,
        inputs: HostInputs,
        spec: DecoderSpec,
        capacity: int,
        cos: ir.Value,
        sin: ir.Value,
        *,
        static_caches: bool,
    ) -> None:
        self.cos, self.sin = cos, sin
        self.static_caches = static_caches
        self._op = op
        self._inputs = inputs
        self._n = spec.num_streams
        self._hidden_size = spec.backbone.hidden_size
        self._capacity = capacity
        self._positions: dict[tuple[Unit, Rows], ir.Value] = {}
        self._masks: dict[tuple[Unit, Rows, int | None], ir.Value] = {}

    def positions(self, unit: Unit, rows: Rows) -> ir.Value:
        """The position of each row, counted in `unit`: int64 [B, rows]."""
        key = (unit, rows)
        if key not in self._positions:
            self._positions[key] = self._make_positions(unit, rows)
        return self._positions[key]

    def mask(self, unit: Unit, rows: Rows, window: int | None) -> ir.Value:
        """Which positions of `unit` each row may attend to: bool [B, 1, rows, live length]."""
        key = (unit, rows, window)
        if key not in self._masks:
            if window is None:
                self._masks[key] = self._make_mask(unit, rows)
            else:
                self._masks[key] = self._make_window(unit, rows, window)
        return self._masks[key]

    def read_cache(self, cache: ir.Value, unit: Unit) -> ir.Value:
        """A cache [B, heads, positions, D] to the live length that the mask speaks of."""
        if not self.static_caches:
            return cache
        # Without the Slice the cost of attention would follow the capacity.
        return self._op.Slice(cache, [0], self._length(unit), [2])

    def _length(self, unit: Unit) -> ir.Value:
        """The live length, counted in `unit`: int64 [1]."""
        return self._row_length if unit == "rows" else self._token_length

    def write_indices(self, unit: Unit) -> ir.Value:
        """The first cache position written for each batch row, counted in `unit`: int64 [B]."""
        return self._row_write_indices if unit == "rows" else self._inputs.write_indices

    def narrow(self, x: ir.Value, have: Rows, want: Rows) -> ir.Value:
        """From states [B, have, H] those of the rows wanted [B, want, H]."""
        op = self._op
        if want == Rows.WANTED and have != Rows.WANTED:
            indices = self._wanted_rows if have == Rows.ALL else self._wanted_tokens
            return op.GatherND(x, indices, batch_dims=1)
        if want == Rows.LAST and have == Rows.ALL and self._n > 1:
            split = op.Reshape(x, [0, -1, self._n, self._hidden_size])
            return op.Gather(split, self._last_stream, axis=2)
        return x

    def _make_positions(self, unit: Unit, rows: Rows) -> ir.Value:
        op = self._op
        if rows == Rows.WANTED:
            tokens = op.GatherND(self._inputs.position_ids, self._wanted_tokens, batch_dims=1)
        else:
            tokens = self._inputs.position_ids
        if unit == "tokens":
            return tokens
        first = op.Mul(tokens, self._n)
        if rows < Rows.ALL:
            return op.Add(first, self._n - 1)
        every = op.Add(op.Unsqueeze(first, [-1]), list(range(self._n)))
        return op.Reshape(every, [0, -1])

    def _make_mask(self, unit: Unit, rows: Rows) -> ir.Value:
        op, mask = self._op, self._inputs.attention_mask
        if unit == "tokens" and rows == Rows.WANTED:
            every = op.GatherND(op.Squeeze(mask, [1]), self._wanted_tokens, batch_dims=1)
            return op.Unsqueeze(every, [1])
        if unit == "tokens":
            # TensorRT-RTX 1.7 cannot build attention of two head counts (all streams, one stream)
            # over one mask tensor ("Graph contains more than one op named ..._iota").
            return mask if rows == Rows.ALL else op.And(mask, mask)
        if rows == Rows.ALL:
            return self._make_row_mask()
        # Of every token it sees, the last stream sees all rows.
        tokens = op.Unsqueeze(self.mask("tokens", rows, None), [4])
        return op.Reshape(op.Expand(tokens, [1, 1, 1, 1, self._n]), [0, 0, 0, -1])

    def _make_row_mask(self) -> ir.Value:
        """Every row against every row: those of tokens it sees, but of its own no later stream."""
        op = self._op
        # [B, 1, R, 1, L, 1] against the streams of query and key, [n, 1, n].
        tokens = op.Unsqueeze(self._inputs.attention_mask, [3, 5])
        keys = op.Unsqueeze(self._key_positions("tokens"), [0, 1, 2])
        own = op.Equal(op.Unsqueeze(self._inputs.position_ids, [1, 3]), keys)
        later = np.triu(np.ones((self._n, self._n), np.bool_), 1)[:, None]
        hidden = op.And(op.Unsqueeze(own, [3, 5]), op.Constant(value=ir.tensor(later)))
        visible = op.And(tokens, op.Not(hidden))
        # Reshape keeps zeros as they are, and the row counts are products.
        shape = op.Concat([0, 1, -1], self._length("rows"), axis=0)
        return op.Reshape(visible, shape)

    def _make_window(self, unit: Unit, rows: Rows, window: int) -> ir.Value:
        op = self._op
        # Padding may stand behind the live length; it must see something, or its softmax is NaN.
        last = op.Sub(self._length(unit), [1])
        positions = op.Min(self.positions(unit, rows), last)
        first = op.Sub(op.Unsqueeze(positions, [1, 3]), window)
        keys = op.Unsqueeze(self._key_positions(unit), [0, 1, 2])
        return op.And(self.mask(unit, rows, None), op.Greater(keys, first))

    def _key_positions(self, unit: Unit) -> ir.Value:
        """0 .. live length - 1."""
        numbers = np.arange(self._capacity * (self._n if unit == "rows" else 1))
        every = self._op.Constant(value=ir.tensor(numbers))
        return self._op.Slice(every, [0], self._length(unit), [0])

    @cached_property
    def _token_length(self) -> ir.Value:
        # Taken from the shape of an input: a length computed from data would leave TensorRT
        # without an optimum for its profiles.
        return self._op.Shape(self._inputs.attention_mask, start=3, end=4)

    @cached_property
    def _row_length(self) -> ir.Value:
        return self._op.Mul(self._token_length, [self._n])

    @cached_property
    def _row_write_indices(self) -> ir.Value:
        return self._op.Mul(self._inputs.write_indices, self._n)

    @cached_property
    def _wanted_tokens(self) -> ir.Value:
        """Indices for GatherND: int64 [B, E, 1]."""
        return self._op.Unsqueeze(self._inputs.output_rows, [-1])

    @cached_property
    def _wanted_rows(self) -> ir.Value:
        if self._n == 1:
            return self._wanted_tokens
        return self._op.Add(self._op.Mul(self._wanted_tokens, self._n), self._n - 1)

    @cached_property
    def _last_stream(self) -> ir.Value:
        return self._op.Constant(value_int=self._n - 1)
