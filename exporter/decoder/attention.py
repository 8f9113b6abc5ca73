"""Self-attention over a static cache that is written in place and read to its live length."""

import onnx_ir as ir
from onnxscript import OpBuilder
from onnxscript.nn import Module

from quatrain.exporter.checkpoint.names import attention_name
from quatrain.exporter.decoder.layer_setting import LayerSetting
from quatrain.exporter.decoder.live_rows import LayerRows, Rows
from quatrain.exporter.decoder.projection import (
    Linear,
    RMSNorm,
    project,
    project_each,
    project_joined,
    split,
)
from quatrain.exporter.decoder.row_views import RowViews, Unit
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

    def __init__(self, setting: LayerSetting, layer: int, rows: LayerRows) -> None:
        super().__init__()
        spec, dtype, joined = setting.spec, setting.dtype, setting.joined
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
        names = tuple(attention_name(layer, part) for part in ("q_proj", "k_proj", "v_proj"))
        self.joins_all, self.joins_key_value = names in joined, names[1:] in joined
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
        query, key, value = self._make_heads(op, query_rows, key_rows, views)
        # TensorRT maps TensorScatter to its in-place cache update only in this form: a graph input
        # to a graph output, four axes, static capacity, linear mode.
        indices = views.write_indices(self.unit)
        keys = op.TensorScatter(key_cache, key, indices, axis=-2, mode="linear")
        values = op.TensorScatter(value_cache, value, indices, axis=-2, mode="linear")
        attended = self._attend(op, query, keys, values, views)
        rows = op.Reshape(
            op.Transpose(attended, perm=[0, 2, 1, 3]), [0, -1, self.q_proj.out_features]
        )
        return project(op, rows, self.o_proj, dtype=self.dtype), keys, values

    def _make_heads(
        self, op: OpBuilder, query_rows: ir.Value, key_rows: ir.Value, views: RowViews
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Normed rows [B, leaving, H] and [B, keys, H] to queries and keys, rotated, and values,
        each [B, heads, positions, D]."""
        # Streams among the heads, or norms between, leave nothing in common but the product.
        if self.joins_all and not self.is_factorized and not self.backbone.qk_norm:
            return self._make_joined_heads(op, key_rows, views)
        query, key, value = self._project(op, query_rows, key_rows)
        num_heads, num_kv_heads = self._count_heads()
        query = self._split_heads(op, query, self.rows.leaving, num_heads)
        key = self._split_heads(op, key, self.rows.keys, num_kv_heads)
        value = self._split_heads(op, value, self.rows.keys, num_kv_heads)
        if self.backbone.qk_norm:
            query, key = self.q_norm(op, query), self.k_norm(op, key)
        query = self._rotate(op, query, views, self.rows.leaving)
        return query, self._rotate(op, key, views, self.rows.keys), value

    def _make_joined_heads(
        self, op: OpBuilder, x: ir.Value, views: RowViews
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The same as heads of one tensor, so that one Transpose and one rotation do."""
        num_heads, num_kv_heads = self._count_heads()
        rows = project_joined(op, x, [self.q_proj, self.k_proj, self.v_proj], dtype=self.dtype)
        heads = self._split_heads(op, rows, self.rows.keys, num_heads + 2 * num_kv_heads)
        turned, value = split(op, heads, [num_heads + num_kv_heads, num_kv_heads], axis=1)
        turned = self._rotate(op, turned, views, self.rows.keys)
        query, key = split(op, turned, [num_heads, num_kv_heads], axis=1)
        return query, key, value

    def _project(
        self, op: OpBuilder, query_rows: ir.Value, key_rows: ir.Value
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        linears = [self.q_proj, self.k_proj, self.v_proj]
        if self.joins_all:
            query, key, value = project_each(op, key_rows, linears, joins=True, dtype=self.dtype)
            return query, key, value
        query = project(op, query_rows, self.q_proj, dtype=self.dtype)
        key, value = project_each(
            op, key_rows, linears[1:], joins=self.joins_key_value, dtype=self.dtype
        )
        return query, key, value

    def _count_heads(self) -> tuple[int, int]:
        return self.backbone.num_attention_heads, self.backbone.num_key_value_heads

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
