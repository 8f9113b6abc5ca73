"""Self-attention over a static cache that is written in place and read to its live length."""

from dataclasses import dataclass

import onnx_ir as ir
from onnxscript import OpBuilder
from onnxscript.nn import Module

from quatrain.exporter.decoder.projection import Linear, RMSNorm, project
from quatrain.exporter.spec import Backbone

__all__ = ["AttentionInputs", "SelfAttention"]


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """What all layers of a graph share. `mask` is bool [B, 1, R, L], True where a row may attend;
    `length` int64 [1] is L; `cos`, `sin` are [positions, D/2] tables of the compute type;
    `position_ids` int64 [B, R]; `write_indices` int64 [B], the first cache position written."""

    mask: ir.Value
    length: ir.Value
    cos: ir.Value
    sin: ir.Value
    position_ids: ir.Value
    write_indices: ir.Value


class SelfAttention(Module):
    """Grouped-query attention with rotary embedding, and Qwen3's norms where the model has them."""

    def __init__(self, backbone: Backbone, dtype: ir.DataType) -> None:
        super().__init__()
        self.backbone = backbone
        self.dtype = dtype
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
        x: ir.Value,
        shared: AttentionInputs,
        key_cache: ir.Value,
        value_cache: ir.Value,
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        """x [B, R, H] and caches [B, Hkv, C, D] to the attended rows [B, R, H] and the caches."""
        query, key, value = self._project_heads(op, x, shared)
        # TensorRT maps TensorScatter to its in-place cache update only in this form: a graph input
        # to a graph output, four axes, static capacity, linear mode.
        keys = op.TensorScatter(key_cache, key, shared.write_indices, axis=-2, mode="linear")
        values = op.TensorScatter(value_cache, value, shared.write_indices, axis=-2, mode="linear")
        # Without the Slice the cost of attention would follow the capacity.
        attended = op.Attention(
            query,
            op.Slice(keys, [0], shared.length, [2]),
            op.Slice(values, [0], shared.length, [2]),
            shared.mask,
            scale=self.backbone.head_dim**-0.5,
        )
        rows = op.Reshape(op.Transpose(attended, perm=[0, 2, 1, 3]), [0, 0, -1])
        return project(op, rows, self.o_proj, dtype=self.dtype), keys, values

    def _project_heads(
        self, op: OpBuilder, x: ir.Value, shared: AttentionInputs
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Query [B, Hq, R, D], key and value [B, Hkv, R, D]; query and key normed and rotated."""
        num_q, num_kv = self.backbone.num_attention_heads, self.backbone.num_key_value_heads
        query = self._split_heads(op, project(op, x, self.q_proj, dtype=self.dtype), num_q)
        key = self._split_heads(op, project(op, x, self.k_proj, dtype=self.dtype), num_kv)
        value = self._split_heads(op, project(op, x, self.v_proj, dtype=self.dtype), num_kv)
        if self.backbone.qk_norm:
            query, key = self.q_norm(op, query), self.k_norm(op, key)
        return self._rotate(op, query, shared), self._rotate(op, key, shared), value

    def _split_heads(self, op: OpBuilder, rows: ir.Value, num_heads: int) -> ir.Value:
        heads = op.Reshape(rows, [0, 0, num_heads, self.backbone.head_dim])
        return op.Transpose(heads, perm=[0, 2, 1, 3])

    def _rotate(self, op: OpBuilder, heads: ir.Value, shared: AttentionInputs) -> ir.Value:
        return op.RotaryEmbedding(heads, shared.cos, shared.sin, shared.position_ids)
