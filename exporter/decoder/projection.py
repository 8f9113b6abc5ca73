"""Linear layers and norms: the parameters of a checkpoint and the one place that multiplies."""

import onnx_ir as ir
from onnxscript import OpBuilder
from onnxscript.nn import Module, Parameter

__all__ = ["Linear", "RMSNorm", "cast", "project"]


class Linear(Module):
    """The parameters of a linear layer, stored as Hugging Face stores them: weight [out, in]."""

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__()
        self.out_features = out_features
        self.weight = Parameter([out_features, in_features])
        self.bias = Parameter([out_features]) if bias else None

    def forward(self, op: OpBuilder) -> tuple[ir.Value, ir.Value | None]:
        """The parameters themselves; `project` multiplies with them."""
        return self.weight, self.bias


def project(op: OpBuilder, x: ir.Value, linear: Linear, *, dtype: ir.DataType) -> ir.Value:
    """x [..., in] times the weight, plus the bias if there is one: [..., out].

    Cast and Transpose of a constant fold when a session or an engine is made, so nothing is
    copied in the bundle. Stacking projections that share x into one MatMul was measured to gain
    nothing on a CPU, where the Split behind it costs what the call saves.
    """
    weight, bias = linear(op)
    y = op.MatMul(x, op.Transpose(cast(op, weight, dtype), perm=[1, 0]))
    return y if bias is None else op.Add(y, cast(op, bias, dtype))


class RMSNorm(Module):
    """RMS normalization over the last axis, in fp32 whatever the compute type."""

    def __init__(self, size: int, epsilon: float, dtype: ir.DataType) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.dtype = dtype
        self.weight = Parameter([size])

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        """x [..., size] of the compute type to the same."""
        wide = cast(op, x, ir.DataType.FLOAT, source=self.dtype)
        scale = cast(op, self.weight, ir.DataType.FLOAT)
        y = op.RMSNormalization(wide, scale, axis=-1, epsilon=self.epsilon)
        return cast(op, y, self.dtype, source=ir.DataType.FLOAT)


def cast(
    op: OpBuilder, value: ir.Value, dtype: ir.DataType, source: ir.DataType | None = None
) -> ir.Value:
    """`value` as `dtype`; no node where it has that type already (`source`: its known type)."""
    if source is None and value.type is not None:
        source = value.type.dtype
    return value if source == dtype else op.Cast(value, to=dtype)
