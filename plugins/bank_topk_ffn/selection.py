"""What the predictor says, and choosing the largest of every bank, in standard operators."""

import onnx_ir as ir
from onnxscript import OpBuilder

__all__ = ["predict_logits", "select_channels", "transpose_weight", "without_nan"]


def predict_logits(
    op: OpBuilder,
    x: ir.Value,
    predictor_0: ir.Value,
    predictor_1: ir.Value,
    activation: str,
    dtype: ir.DataType,
) -> ir.Value:
    """The logit of every channel, float32 [B, R, d_i], of rows [B, R, d] of `dtype`.

    The rule is that of `reference.predict_logits`; the weights may be of any float type.
    """
    hidden = op.MatMul(x, transpose_weight(op, predictor_0, dtype))
    if activation == "relu":
        hidden = op.Relu(hidden)
    elif activation == "silu":
        hidden = op.Mul(hidden, op.Sigmoid(hidden))
    # float32 from here on: logits rounded to 16 bits would tie, and choose by index.
    hidden = op.Cast(hidden, to=ir.DataType.FLOAT)
    logits = op.MatMul(hidden, transpose_weight(op, predictor_1, ir.DataType.FLOAT))
    return without_nan(op, logits)


def transpose_weight(op: OpBuilder, weight: ir.Value, dtype: ir.DataType) -> ir.Value:
    """A weight [out, in] as [in, out] of the compute type."""
    return op.Transpose(op.Cast(weight, to=dtype), perm=[1, 0])


def without_nan(op: OpBuilder, scores: ir.Value) -> ir.Value:
    """float32 scores with minus infinity for NaN, so that it displaces no finite one."""
    # A comparison with itself, since NaN is the one value that fails it.
    return op.Where(op.Equal(scores, scores), scores, op.Constant(value_float=float("-inf")))


def select_channels(
    op: OpBuilder, scores: ir.Value, bank_size: ir.Value, top_k: ir.Value
) -> ir.Value:
    """True for the chosen channels: float32 [B, R, d_i], free of NaN, to bool [B, R, d_i].

    `bank_size` and `top_k` are int64 [1]. The rule is that of `reference.select_channels`. It is
    built on the values that TopK finds, which all backends agree on, and not on the indices:
    TensorRT promises no order among equal values.
    """
    shape = op.Concat(op.Constant(value_ints=[0, 0, -1]), bank_size, axis=0)
    banks = op.Reshape(scores, shape)
    values, _ = op.TopK(banks, top_k, axis=-1, _outputs=2)
    one, last = op.Constant(value_ints=[1]), op.Constant(value_ints=[-1])
    smallest = op.Slice(values, op.Sub(top_k, one), top_k, last)
    above, equal = op.Greater(banks, smallest), op.Equal(banks, smallest)
    # Those above are in; of the equal ones the first, as many as there is room for.
    num_above = op.ReduceSum(op.Cast(above, to=ir.DataType.FLOAT), last, keepdims=1)
    room = op.Sub(op.Cast(top_k, to=ir.DataType.FLOAT), num_above)
    axis = op.Constant(value_int=-1)
    place = op.CumSum(op.Cast(equal, to=ir.DataType.FLOAT), axis)
    chosen = op.Or(above, op.And(equal, op.LessOrEqual(place, room)))
    return op.Reshape(chosen, op.Constant(value_ints=[0, 0, -1]))
