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


def project(op: OpBuilder, x: ir.Value, *linears: Linear, dtype: ir.DataType) -> ir.Value:
    """x [..., in] times the stacked weights, plus their biases: [..., sum of out_features].

    Layers that share their input are one MatMul: the Concat, Cast and Transpose of constants
    fold when a session or an engine is made, so nothing is copied in the bundle.
    """
    parameters = [linear(op) for linear in linears]
    weights = [cast(op, weight, dtype) for weight, _ in parameters]
    weight = op.Concat(*weights, axis=0) if len(weights) > 1 else weights[0]
    y = op.MatMul(x, op.Transpose(weight, perm=[1, 0]))
    biases = [cast(op, bias, dtype) for _, bias in parameters if bias is not None]
    if not biases:
        return y
    return op.Add(y, op.Concat(*biases, axis=0) if len(biases) > 1 else biases[0])


class RMSNorm(Module):
    """RMS normalization over the last axis, in fp32 whatever the compute type."""

    def __init__(self, size: int, epsilon: float, dtype: ir.DataType) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.dtype = dtype
        self.weight = Parameter([size])

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
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
