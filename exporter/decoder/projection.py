"""Linear layers and norms: the parameters of a checkpoint and the one place that multiplies."""

from collections.abc import Sequence

import onnx_ir as ir
from onnxscript import OpBuilder
from onnxscript.nn import Module, Parameter

__all__ = ["Linear", "RMSNorm", "cast", "project", "project_each", "project_joined", "split"]


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
    copied in the bundle. See `joined_projections` for when several are multiplied at once.
    """
    weight, bias = linear(op)
    y = op.MatMul(x, op.Transpose(cast(op, weight, dtype), perm=[1, 0]))
    return y if bias is None else op.Add(y, cast(op, bias, dtype))


def project_joined(
    op: OpBuilder, x: ir.Value, linears: Sequence[Linear], *, dtype: ir.DataType
) -> ir.Value:
    """x [..., in] times all of these weights at once: [..., out + out + ...].

    Either all of them have a bias or none.
    """
    pairs = [linear(op) for linear in linears]
    weights = [op.Transpose(cast(op, weight, dtype), perm=[1, 0]) for weight, _ in pairs]
    y = op.MatMul(x, op.Concat(*weights, axis=1))
    biases = [cast(op, bias, dtype) for _, bias in pairs if bias is not None]
    return op.Add(y, op.Concat(*biases, axis=0)) if biases else y


def project_each(
    op: OpBuilder, x: ir.Value, linears: Sequence[Linear], *, joins: bool, dtype: ir.DataType
) -> list[ir.Value]:
    """x [..., in] times each of these weights [..., out]; with `joins`, by one product."""
    if not joins:
        return [project(op, x, linear, dtype=dtype) for linear in linears]
    y = project_joined(op, x, linears, dtype=dtype)
    return split(op, y, [linear.out_features for linear in linears], axis=-1)


def split(op: OpBuilder, x: ir.Value, sizes: Sequence[int], axis: int) -> list[ir.Value]:
    """Parts of these sizes along an axis."""
    parts = op.Split(x, list(sizes), axis=axis, _outputs=len(sizes))
    return list(parts)


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
