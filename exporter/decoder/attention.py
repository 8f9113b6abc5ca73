"""Self-attention over a static cache that is written in place and read to its live length."""

import onnx_ir as ir
from onnxscript import OpBuilder
from onnxscript.nn import Module

from quatrain.exporter.decoder.live_rows import LayerRows, Rows
from quatrain.exporter.decoder.projection import Linear, RMSNorm, project
from quatrain.exporter.decoder.row_views import RowViews, Unit
from quatrain.exporter.spec import DecoderSpec
from quatrain.plugins.stream_attention.body import (
    STREAM_FACTORIZED_ATTENTION,
    stream_factorized_attention_function,
)

__all__ = ["SelfAttention"]


class SelfAttention(Module):
    """Grouped-query attention with rotary embedding, and Qwen3's norms where the model has them.

    In a model with streams a layer attends either over rows, as any decoder does, or within each
    stream over tokens. The rows of a token lie side by side, so the latter takes no more than to
    count them among the heads.
    """

    def __init__(self, spec: DecoderSpec, layer: int, rows: LayerRows, dtype: ir.DataType) -> None:
        super().__init__()
        backbone = spec.backbone
        self.backbone = backbone
        self.rows = rows
        self.dtype = dtype
        self.num_streams = spec.num_streams
        self.is_factorized = spec.num_streams > 1 and spec.is_intra_stream(layer)
        self.unit: Unit = "tokens" if spec.num_streams == 1 or self.is_factorized else "rows"
        self.window = backbone.window(layer)
        hidden, head_dim = backbone.hidden_size, backbone.head_dim
        q_size = backbone.num_attention_heads * head_dim
        kv_size = backbone.num_key_value_heads * head_dim
        self.q_proj = Linear(hidden, q_size, backbone.attention_bias)
        self.k_proj = Linear(hidden, kv_size, backbone.attention_bias)
        self.v_proj = Linear(hidden, kv_size, backbone.attention_bias)
        self.o_proj = Linear(q_size, hidden, backbone.attention_output_bias)
        if backbone.qk_norm:
            self.q_norm = RMSNorm(head_dim, backbone.rms_norm_eps, dtype)
            self.k_norm = RMSNorm(head_dim, backbone.rms_norm_eps, dtype)

    def forward(
        self,
        op: OpBuilder,
        query_rows: ir.Value,
        key_rows: ir.Value,
        views: RowViews,
        key_cache: ir.Value,
        value_cache: ir.Value,
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Normed rows that attend [B, leaving, H] and that are attended to [B, keys, H], and the
        caches [B, heads, positions, D], to the attended rows [B, leaving, H] and the caches."""
        query = self._project_query(op, query_rows, views)
        key, value = self._project_key_value(op, key_rows, views)
        # TensorRT maps TensorScatter to its in-place cache update only in this form: a graph input
        # to a graph output, four axes, static capacity, linear mode.
        indices = views.write_indices(self.unit)
        keys = op.TensorScatter(key_cache, key, indices, axis=-2, mode="linear")
        values = op.TensorScatter(value_cache, value, indices, axis=-2, mode="linear")
        attended = self._attend(op, query, keys, values, views)
        q_size = self.backbone.num_attention_heads * self.backbone.head_dim
        rows = op.Reshape(op.Transpose(attended, perm=[0, 2, 1, 3]), [0, -1, q_size])
        return project(op, rows, self.o_proj, dtype=self.dtype), keys, values

    def _project_query(self, op: OpBuilder, x: ir.Value, views: RowViews) -> ir.Value:
        """[B, leaving, H] to rotated heads [B, heads, positions, D]."""
        rows, num_heads = self.rows.leaving, self.backbone.num_attention_heads
        query = self._split_heads(
            op, project(op, x, self.q_proj, dtype=self.dtype), rows, num_heads
        )
        if self.backbone.qk_norm:
            query = self.q_norm(op, query)
        return self._rotate(op, query, views, rows)

    def _project_key_value(
        self, op: OpBuilder, x: ir.Value, views: RowViews
    ) -> tuple[ir.Value, ir.Value]:
        rows, num_heads = self.rows.keys, self.backbone.num_key_value_heads
        key = self._split_heads(op, project(op, x, self.k_proj, dtype=self.dtype), rows, num_heads)
        value = self._split_heads(
            op, project(op, x, self.v_proj, dtype=self.dtype), rows, num_heads
        )
        if self.backbone.qk_norm:
            key = self.k_norm(op, key)
        return self._rotate(op, key, views, rows), value

    def _split_heads(self, op: OpBuilder, x: ir.Value, rows: Rows, num_heads: int) -> ir.Value:
        """[B, rows, heads * D] to [B, heads, positions, D], streams among the heads if need be."""
        if self.is_factorized and rows == Rows.ALL:
            num_heads *= self.num_streams
        heads = op.Reshape(x, [0, -1, num_heads, self.backbone.head_dim])
        return op.Transpose(heads, perm=[0, 2, 1, 3])

    def _rotate(self, op: OpBuilder, heads: ir.Value, views: RowViews, rows: Rows) -> ir.Value:
        positions = views.positions(self.unit, rows)
        return op.RotaryEmbedding(heads, views.cos, views.sin, positions)

    def _attend(
        self, op: OpBuilder, query: ir.Value, keys: ir.Value, values: ir.Value, views: RowViews
    ) -> ir.Value:
        mask = views.mask(self.unit, self.rows.leaving, self.window)
        scale = self.backbone.head_dim**-0.5
        if self.is_factorized:
            return op.call(
                stream_factorized_attention_function(
                    op.builder.graph.opset_imports[""], static_caches=views.static_caches
                ),
                query,
                keys,
                values,
                views.positions(self.unit, self.rows.leaving),
                mask,
                scale=scale,
                window=self.window or 0,
                **STREAM_FACTORIZED_ATTENTION.plugin_attributes,
            )
        live_keys = views.read_cache(keys, self.unit)
        live_values = views.read_cache(values, self.unit)
        return op.Attention(query, live_keys, live_values, mask, scale=scale)
