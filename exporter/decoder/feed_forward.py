"""The feed-forward network: SwiGLU, whole or of the channels that were picked (the width axis)."""

import onnx_ir as ir
from onnxscript import OpBuilder
from onnxscript.nn import Module

from quatrain.exporter.checkpoint.names import feed_forward_name
from quatrain.exporter.decoder.device import Device
from quatrain.exporter.decoder.layer_setting import LayerSetting
from quatrain.exporter.decoder.projection import Linear, cast, project, project_each
from quatrain.exporter.spec import Backbone, BankTopK
from quatrain.plugins.bank_topk_ffn.body import (
    BANK_TOPK_FEED_FORWARD,
    bank_topk_feed_forward_function,
)
from quatrain.plugins.bank_topk_ffn.selection import (
    predict_logits,
    select_channels,
    without_nan,
)

__all__ = ["BankTopKFeedForward", "FeedForward", "make_feed_forward"]


def make_feed_forward(setting: LayerSetting, layer: int) -> "FeedForward | BankTopKFeedForward":
    """The feed-forward network of a layer."""
    spec, dtype = setting.spec, setting.dtype
    banks = spec.feed_forward
    names = tuple(feed_forward_name(layer, part) for part in ("gate_proj", "up_proj"))
    joins = names in setting.joined
    if banks is None or (layer in banks.dense_fallback_layers and banks.gate_mode == "silu"):
        return FeedForward(spec.backbone, dtype, joins=joins)
    if banks.predictor_rank is None:
        return FeedForward(spec.backbone, dtype, banks, joins=joins)
    return BankTopKFeedForward(spec.backbone, banks, layer, dtype, setting.device)


class FeedForward(Module):
    """down(SiLU(gate x) * (up x)).

    With `banks`, of every bank only the channels of largest magnitude reach the last product.
    """

    def __init__(
        self,
        backbone: Backbone,
        dtype: ir.DataType,
        banks: BankTopK | None = None,
        *,
        joins: bool = False,
    ) -> None:
        super().__init__()
        self.dtype = dtype
        self.banks = banks
        self.joins = joins
        hidden, inner = backbone.hidden_size, backbone.intermediate_size
        self.gate_proj = Linear(hidden, inner, backbone.mlp_bias)
        self.up_proj = Linear(hidden, inner, backbone.mlp_bias)
        self.down_proj = Linear(inner, hidden, backbone.mlp_bias)

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        """Rows [B, R, H] of the compute type to the same."""
        gate, up = project_each(
            op, x, [self.gate_proj, self.up_proj], joins=self.joins, dtype=self.dtype
        )
        inner = op.Mul(op.Mul(gate, op.Sigmoid(gate)), up)
        if self.banks is not None:
            wide = cast(op, inner, ir.DataType.FLOAT, source=self.dtype)
            magnitude = without_nan(op, op.Abs(wide))
            size, top_k = (
                op.Constant(value_ints=[n]) for n in (self.banks.bank_size, self.banks.top_k)
            )
            chosen = select_channels(op, magnitude, size, top_k)
            inner = op.Where(chosen, inner, op.CastLike(op.Constant(value_float=0.0), inner))
        return project(op, inner, self.down_proj, dtype=self.dtype)


class BankTopKFeedForward(Module):
    """The channels that the predictor picks, as one `quatrain::BankTopKFeedForward` node.

    A dense fallback layer runs all of them behind the same gate, and needs no operator for that.
    """

    def __init__(
        self,
        backbone: Backbone,
        banks: BankTopK,
        layer: int,
        dtype: ir.DataType,
        device: Device,
    ) -> None:
        super().__init__()
        assert banks.predictor_rank is not None
        self.banks = banks
        self.activation = banks.predictor_activation or "none"
        self.is_dense = layer in banks.dense_fallback_layers
        self.dtype = dtype
        self.device: Device = device
        hidden, inner = backbone.hidden_size, backbone.intermediate_size
        if not (self.is_dense and banks.gate_mode == "hard"):
            # A torch Sequential: the parameters are numbered.
            setattr(self, "predictor.0", Linear(hidden, banks.predictor_rank))
            setattr(self, "predictor.1", Linear(banks.predictor_rank, inner))
        self.gate_proj = Linear(hidden, inner)
        self.up_proj = Linear(hidden, inner)
        self.down_proj = Linear(inner, hidden)

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        """Rows [B, R, H] of the compute type to the same."""
        if self.is_dense:
            return self._run_all(op, x)
        layers = [getattr(self, "predictor.0"), getattr(self, "predictor.1")]
        layers += [self.gate_proj, self.up_proj, self.down_proj]
        weights = [self._prepare(op, linear(op)[0]) for linear in layers]
        # A channel of W_down as a row, like those of the other two. It folds into one constant,
        # which many rows are multiplied with and one row gathers from.
        weights[-1] = op.Transpose(cast(op, weights[-1], self.dtype), perm=[1, 0])
        function = bank_topk_feed_forward_function(
            self.banks.gate_mode,
            self.activation,
            self.dtype,
            op.builder.graph.opset_imports[""],
            gathers=self.device == "cpu",
        )
        return op.call(
            function,
            x,
            *weights,
            bank_size=self.banks.bank_size,
            top_k=self.banks.top_k,
            gate_mode=self.banks.gate_mode,
            predictor_activation=self.activation,
            **BANK_TOPK_FEED_FORWARD.plugin_attributes,
        )

    def _prepare(self, op: OpBuilder, weight: ir.Value) -> ir.Value:
        """For an engine, whose kernels take one type, a weight of the compute type.

        ONNX Runtime turns a gathered row into float32 at leisure if it is bfloat16; then the whole
        matrix is, once, when a session is made (float16 rows it turns as it goes).
        """
        if self.device == "engine" or weight.dtype == ir.DataType.BFLOAT16:
            return cast(op, weight, self.dtype)
        return weight

    def _run_all(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        inner = project(op, x, self.gate_proj, dtype=self.dtype)
        if self.banks.gate_mode == "sigmoid":
            first, second = (getattr(self, f"predictor.{k}")(op)[0] for k in range(2))
            logits = predict_logits(op, x, first, second, self.activation, self.dtype)
            inner = op.Mul(inner, cast(op, op.Sigmoid(logits), self.dtype))
        inner = op.Mul(inner, project(op, x, self.up_proj, dtype=self.dtype))
        return project(op, inner, self.down_proj, dtype=self.dtype)
