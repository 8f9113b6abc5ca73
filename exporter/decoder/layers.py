"""The decoder layer, and the stack of those that one graph holds."""

from collections.abc import Sequence

import onnx_ir as ir
from onnxscript import OpBuilder
from onnxscript.nn import Module, Parameter

from quatrain.exporter.decoder.attention import AttentionInputs, SelfAttention
from quatrain.exporter.decoder.feed_forward import FeedForward
from quatrain.exporter.decoder.projection import RMSNorm, cast
from quatrain.exporter.spec import Backbone

__all__ = ["DecoderLayer", "Embedding", "LayerStack"]

Caches = list[tuple[ir.Value, ir.Value]]


class Embedding(Module):
    """Token embedding: ids int64 [B, R] to rows [B, R, H] of the compute type."""

    def __init__(self, backbone: Backbone, dtype: ir.DataType) -> None:
        super().__init__()
        self.dtype = dtype
        self.weight = Parameter([backbone.vocab_size, backbone.hidden_size])

    def forward(self, op: OpBuilder, input_ids: ir.Value) -> ir.Value:
        # On a CPU gather first: a cast of the whole table would be kept as a second, wider copy.
        if self.dtype == ir.DataType.FLOAT:
            return cast(op, op.Gather(self.weight, input_ids), self.dtype, self.weight.dtype)
        # An engine keeps the cast table only, and a tied head then shares it.
        return op.Gather(cast(op, self.weight, self.dtype), input_ids)


class DecoderLayer(Module):
    """Pre-norm attention and feed-forward, each with its residual."""

    def __init__(self, backbone: Backbone, dtype: ir.DataType) -> None:
        super().__init__()
        hidden, epsilon = backbone.hidden_size, backbone.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, epsilon, dtype)
        self.self_attn = SelfAttention(backbone, dtype)
        self.post_attention_layernorm = RMSNorm(hidden, epsilon, dtype)
        self.mlp = FeedForward(backbone, dtype)

    def forward(
        self,
        op: OpBuilder,
        x: ir.Value,
        shared: AttentionInputs,
        key_cache: ir.Value,
        value_cache: ir.Value,
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Rows [B, R, H] through the layer, with its updated caches."""
        normed = self.input_layernorm(op, x)
        attended, keys, values = self.self_attn(op, normed, shared, key_cache, value_cache)
        x = op.Add(x, attended)
        x = op.Add(x, self.mlp(op, self.post_attention_layernorm(op, x)))
        return x, keys, values


class LayerStack(Module):
    """What Hugging Face calls `model`: the embedding, some of the layers, the final norm.

    A graph that starts past the first layer has no embedding, and one that ends before the last
    has no norm; the layers keep their numbers, so parameter names stay the checkpoint's.
    """

    def __init__(self, backbone: Backbone, layers: Sequence[int], dtype: ir.DataType) -> None:
        super().__init__("model")
        self.layer_indices = tuple(layers)
        if 0 in self.layer_indices:
            self.embed_tokens = Embedding(backbone, dtype)
        for index in self.layer_indices:
            setattr(self, f"layers.{index}", DecoderLayer(backbone, dtype))
        self.ends_here = backbone.num_hidden_layers - 1 in self.layer_indices
        if self.ends_here:
            self.norm = RMSNorm(backbone.hidden_size, backbone.rms_norm_eps, dtype)

    def forward(
        self, op: OpBuilder, x: ir.Value, shared: AttentionInputs, caches: Caches, rows: ir.Value
    ) -> tuple[ir.Value, ir.Value, Caches]:
        """Token ids [B, R] or rows [B, R, H] to all rows after these layers, those of `rows`
        int64 [B, E] (normed if the final norm is here), and the updated caches."""
        if 0 in self.layer_indices:
            x = self.embed_tokens(op, x)
        updated: Caches = []
        for index, (key_cache, value_cache) in zip(self.layer_indices, caches, strict=True):
            layer = getattr(self, f"layers.{index}")
            x, keys, values = layer(op, x, shared, key_cache, value_cache)
            updated.append((keys, values))
        wanted = op.GatherND(x, op.Unsqueeze(rows, [-1]), batch_dims=1)
        return x, self.norm(op, wanted) if self.ends_here else wanted, updated
