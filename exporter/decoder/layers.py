"""The decoder layer, and the stack of those that one graph holds."""

from collections.abc import Mapping

import onnx_ir as ir
from onnxscript import OpBuilder
from onnxscript.nn import Module

from quatrain.exporter.decoder.attention import SelfAttention
from quatrain.exporter.decoder.embedding import HostRows, StreamEmbedding
from quatrain.exporter.decoder.feed_forward import make_feed_forward
from quatrain.exporter.decoder.layer_setting import LayerSetting
from quatrain.exporter.decoder.live_rows import LayerRows, Rows
from quatrain.exporter.decoder.projection import RMSNorm
from quatrain.exporter.decoder.row_views import RowViews

__all__ = ["Caches", "DecoderLayer", "LayerStack"]

Caches = list[tuple[ir.Value, ir.Value]]


class DecoderLayer(Module):
    """Pre-norm attention and feed-forward, each with its residual."""

    def __init__(self, setting: LayerSetting, layer: int, rows: LayerRows) -> None:
        super().__init__()
        backbone, dtype = setting.spec.backbone, setting.dtype
        hidden, epsilon = backbone.hidden_size, backbone.rms_norm_eps
        self.layer = layer
        self.rows = rows
        self.input_layernorm = RMSNorm(hidden, epsilon, dtype)
        self.self_attn = SelfAttention(setting, layer, rows)
        self.post_attention_layernorm = RMSNorm(hidden, epsilon, dtype)
        self.mlp = make_feed_forward(setting, layer)

    def forward(
        self,
        op: OpBuilder,
        x: ir.Value,
        views: RowViews,
        cache: tuple[ir.Value, ir.Value],
        mirrored: ir.Value | None = None,
    ) -> tuple[ir.Value, ir.Value, tuple[ir.Value, ir.Value]]:
        """Rows [B, entering, H] to [B, leaving, H], their normed form (for layers that mirror this
        one) and the updated cache.

        `mirrored`, [B, keys, H], takes the place of the normed rows that keys and values are of.
        """
        normed = self.input_layernorm(op, x)
        if mirrored is None:
            mirrored = views.narrow(normed, self.rows.entering, self.rows.keys)
        attending = views.narrow(normed, self.rows.entering, self.rows.leaving)
        attended, keys, values = self.self_attn(op, attending, mirrored, views, *cache)
        x = op.Add(views.narrow(x, self.rows.entering, self.rows.leaving), attended)
        # What is compared with the checkpoint has a name to find it by.
        x.name = f"layers.{self.layer}.attention"
        x = op.Add(x, self.mlp(op, self.post_attention_layernorm(op, x)))
        x.name = f"layers.{self.layer}.output"
        return x, normed, (keys, values)


class LayerStack(Module):
    """What Hugging Face calls `model`: the embedding, some of the layers, the final norm.

    A graph that starts past the first layer has no embedding, and one that ends before the last
    has no norm; the layers keep their numbers, so parameter names stay the checkpoint's.
    """

    def __init__(
        self, setting: LayerSetting, plan: Mapping[int, LayerRows], *, host_embeddings: bool
    ) -> None:
        super().__init__("model")
        spec, dtype = setting.spec, setting.dtype
        backbone = spec.backbone
        self.plan = plan
        self.sources = {layer: spec.mirror_source(layer) for layer in plan}
        for index, rows in plan.items():
            setattr(self, f"layers.{index}", DecoderLayer(setting, index, rows))
        self.starts_here = 0 in plan
        if self.starts_here:
            embedding = HostRows if host_embeddings else StreamEmbedding
            self.embed = embedding(spec, plan[0].entering, dtype)
        self.ends_here = backbone.num_hidden_layers - 1 in plan
        if self.ends_here:
            self.norm = RMSNorm(backbone.hidden_size, backbone.rms_norm_eps, dtype)

    def forward(
        self, op: OpBuilder, x: ir.Value, views: RowViews, caches: Caches
    ) -> tuple[ir.Value, ir.Value, Caches]:
        """What the graph is fed with to the rows that leave these layers, those of them that are
        wanted [B, E, H] (normed if the final norm is here), and the updated caches."""
        if self.starts_here:
            x = self._embed(op, x)
        normed: dict[int, ir.Value] = {}
        updated: Caches = []
        leaving = Rows.ALL
        for (index, rows), cache in zip(self.plan.items(), caches, strict=True):
            source = self.sources[index]
            mirrored = None
            if source is not None:
                mirrored = views.narrow(normed[source], self.plan[source].entering, rows.keys)
            layer = getattr(self, f"layers.{index}")
            x, normed[index], cache = layer(op, x, views, cache, mirrored)
            updated.append(cache)
            leaving = rows.leaving
        wanted = views.narrow(x, leaving, Rows.WANTED)
        return x, self.norm(op, wanted) if self.ends_here else wanted, updated

    def _embed(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        rows: ir.Value = self.embed(op, x)
        if rows is not x:  # an input keeps its own name
            rows.name = "embedding"
        return rows
