"""The time axis: from a state and the next token to a guess of the next state (HiLP, NextLat)."""

import onnx_ir as ir
from onnxscript import OpBuilder
from onnxscript.nn import Module

from quatrain.exporter.decoder.projection import Linear, RMSNorm, project
from quatrain.exporter.spec import Drafter

__all__ = ["HiLPDynamics", "NextLatDynamics", "make_dynamics"]


def make_dynamics(
    drafter: Drafter, hidden_size: int, dtype: ir.DataType
) -> "HiLPDynamics | NextLatDynamics":
    """The dynamics of a drafter, with their parameters' public names."""
    if drafter.kind == "nextlat":
        return NextLatDynamics(drafter, hidden_size, dtype)
    return HiLPDynamics(drafter, hidden_size, dtype)


class HiLPDynamics(Module):
    """HiLP's low-level dynamics (arXiv 2608.05806, appendix D): a gated fusion of state and
    embedding, or their concatenation, and a SwiGLU predictor."""

    def __init__(self, drafter: Drafter, hidden_size: int, dtype: ir.DataType) -> None:
        super().__init__("lower_dynamics")
        self.drafter = drafter
        self.dtype = dtype
        self.is_fused = drafter.kind == "glu_cross"
        width = hidden_size
        if self.is_fused:
            self.w_h = Linear(hidden_size, hidden_size)
            self.w_e = Linear(hidden_size, hidden_size)
        else:
            width = 2 * hidden_size
        self.gate = Linear(width, drafter.inner_size)
        self.up = Linear(width, drafter.inner_size)
        self.down = Linear(drafter.inner_size, hidden_size)

    def forward(self, op: OpBuilder, state: ir.Value, embedding: ir.Value) -> ir.Value:
        """States and embeddings [B, H] of the compute type to the next states."""
        if self.is_fused:
            opened = op.Sigmoid(project(op, embedding, self.w_e, dtype=self.dtype))
            fused = op.Mul(project(op, state, self.w_h, dtype=self.dtype), opened)
        else:
            fused = op.Concat(state, embedding, axis=-1)
        gate = project(op, fused, self.gate, dtype=self.dtype)
        up = project(op, fused, self.up, dtype=self.dtype)
        inner = op.Mul(op.Mul(gate, op.Sigmoid(gate)), up)
        change = project(op, inner, self.down, dtype=self.dtype)
        return op.Add(state, change) if self.drafter.residual else change


class NextLatDynamics(Module):
    """NextLat's dynamics (arXiv 2511.05963; JaydenTeoh/NextLat, `model_nextlat.py`): an MLP over
    the normed concatenation, embedding first."""

    def __init__(self, drafter: Drafter, hidden_size: int, dtype: ir.DataType) -> None:
        super().__init__("dynamics_model")
        self.drafter = drafter
        self.dtype = dtype
        inner = drafter.inner_size
        self.norm_x = RMSNorm(2 * hidden_size, drafter.norm_eps, dtype)
        # A torch Sequential with activations in between: its layers are numbered 0, 2 and 4.
        setattr(self, "mlp.0", Linear(2 * hidden_size, inner))
        setattr(self, "mlp.2", Linear(inner, inner))
        setattr(self, "mlp.4", Linear(inner, hidden_size))

    def forward(self, op: OpBuilder, state: ir.Value, embedding: ir.Value) -> ir.Value:
        """States and embeddings [B, H] of the compute type to the next states."""
        x = self.norm_x(op, op.Concat(embedding, state, axis=-1))
        x = op.Gelu(project(op, x, getattr(self, "mlp.0"), dtype=self.dtype))
        x = op.Gelu(project(op, x, getattr(self, "mlp.2"), dtype=self.dtype))
        change = project(op, x, getattr(self, "mlp.4"), dtype=self.dtype)
        return op.Add(state, change) if self.drafter.residual else change
