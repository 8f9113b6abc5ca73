"""From tokens to rows: one embedding table per stream, in the graph or on the host."""

import onnx_ir as ir
from onnxscript import OpBuilder
from onnxscript.nn import Module, Parameter

from quatrain.exporter.checkpoint.names import stream_table_name
from quatrain.exporter.decoder.live_rows import Rows, list_streams
from quatrain.exporter.decoder.projection import cast
from quatrain.exporter.spec import DecoderSpec

__all__ = ["HostRows", "StreamEmbedding"]


class StreamEmbedding(Module):
    """Token ids int64 [B, R] to the rows [B, entering, H] of the compute type.

    `tables` has the table of each stream that is looked up, by its number.
    """

    def __init__(self, spec: DecoderSpec, entering: Rows, dtype: ir.DataType) -> None:
        super().__init__("")
        backbone = spec.backbone
        self.dtype = dtype
        self.hidden_size = backbone.hidden_size
        self.tables: dict[int, Parameter] = {}
        for stream in list_streams(spec.num_streams, entering):
            name = stream_table_name(stream).removeprefix("model.")
            table = Parameter([backbone.vocab_size, backbone.hidden_size], name=name)
            setattr(self, f"table_{stream}", table)
            self.tables[stream] = table

    def forward(self, op: OpBuilder, input_ids: ir.Value) -> ir.Value:
        rows = [self._look_up(op, table, input_ids) for table in self.tables.values()]
        if len(rows) == 1:
            return rows[0]
        # A token's rows side by side are its rows one after the other.
        return op.Reshape(op.Concat(*rows, axis=-1), [0, -1, self.hidden_size])

    def _look_up(self, op: OpBuilder, table: ir.Value, input_ids: ir.Value) -> ir.Value:
        # On a CPU gather first: a cast of the whole table would be kept as a second, wider copy.
        if self.dtype == ir.DataType.FLOAT:
            return cast(op, op.Gather(table, input_ids), self.dtype, table.dtype)
        # An engine keeps the cast table only, and a tied head then shares it.
        return op.Gather(cast(op, table, self.dtype), input_ids)


class HostRows(Module):
    """Rows that the host looked up, float32 [B, R, n * H], to those [B, entering, H] of the compute
    type: a token's rows side by side are its rows one after the other."""

    def __init__(self, spec: DecoderSpec, entering: Rows, dtype: ir.DataType) -> None:
        super().__init__("")
        self.num_streams = spec.num_streams
        self.hidden_size = spec.backbone.hidden_size
        self.entering = entering
        self.dtype = dtype
        self.tables: dict[int, Parameter] = {}

    def forward(self, op: OpBuilder, inputs_embeds: ir.Value) -> ir.Value:
        rows = inputs_embeds
        if self.num_streams > 1 and self.entering == Rows.ALL:
            rows = op.Reshape(rows, [0, -1, self.hidden_size])
        elif self.num_streams > 1:
            end = self.num_streams * self.hidden_size
            rows = op.Slice(rows, [end - self.hidden_size], [end], [2])
        return cast(op, rows, self.dtype, ir.DataType.FLOAT)
