"""The SwiGLU feed-forward network."""

import onnx_ir as ir
from onnxscript import OpBuilder
from onnxscript.nn import Module

from quatrain.exporter.decoder.projection import Linear, project
from quatrain.exporter.spec import Backbone

__all__ = ["FeedForward"]


class FeedForward(Module):
    """down(SiLU(gate x) * (up x))."""

    def __init__(self, backbone: Backbone, dtype: ir.DataType) -> None:
        super().__init__()
        self.dtype = dtype
        hidden, inner = backbone.hidden_size, backbone.intermediate_size
        self.gate_proj = Linear(hidden, inner, backbone.mlp_bias)
        self.up_proj = Linear(hidden, inner, backbone.mlp_bias)
        self.down_proj = Linear(inner, hidden, backbone.mlp_bias)

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        """Rows [B, R, H] of the compute type to the same."""
        gate = project(op, x, self.gate_proj, dtype=self.dtype)
        up = project(op, x, self.up_proj, dtype=self.dtype)
        inner = op.Mul(op.Mul(gate, op.Sigmoid(gate)), up)
        return project(op, inner, self.down_proj, dtype=self.dtype)
