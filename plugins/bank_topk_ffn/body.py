"""`quatrain::BankTopKFeedForward` as an ONNX function of standard operators."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, build_function

from quatrain.plugins.bank_topk_ffn.plugin import BANK_TOPK_FEED_FORWARD
from quatrain.plugins.bank_topk_ffn.selection import (
    predict_logits,
    select_channels,
    transpose_weight,
)
from quatrain.plugins.operator import DOMAIN

__all__ = ["BANK_TOPK_FEED_FORWARD", "bank_topk_feed_forward_function"]

_INPUTS = ("x", "predictor_0", "predictor_1", "gate", "up", "down")


def bank_topk_feed_forward_function(
    gate_mode: str,
    predictor_activation: str,
    dtype: ir.DataType,
    opset_version: int,
    *,
    gathers: bool,
) -> ir.Function:
    """The body; `reference.py` says what it computes and names the inputs.

    x and `down` are of `dtype`, the other weights may be of any float type; the output is like x,
    [B, R, d]. Logits, selection and gate are float32. Attributes: bank_size, top_k; gate_mode and
    predictor_activation, which a plugin reads and this body was made for.

    Args:
        gathers: For a CPU: a call of one row reads only the weights of its active channels, from
            where they are stored, one of more rows computes all channels behind a gate of zeros.
            Otherwise all are computed and the inactive ones masked.
    """
    body = _Body(gate_mode, predictor_activation, dtype, gathers)
    return build_function(
        body.trace,
        [ir.Value(name=name) for name in _INPUTS],
        domain=DOMAIN,
        name=BANK_TOPK_FEED_FORWARD.name,
        attributes=[
            ir.Attr("bank_size", ir.AttributeType.INT, None),
            ir.Attr("top_k", ir.AttributeType.INT, None),
            ir.Attr("gate_mode", ir.AttributeType.STRING, gate_mode),
            ir.Attr("predictor_activation", ir.AttributeType.STRING, predictor_activation),
        ],
        opset_imports={"": opset_version},
    )


class _Body:
    def __init__(
        self, gate_mode: str, predictor_activation: str, dtype: ir.DataType, gathers: bool
    ) -> None:
        self.gate_mode = gate_mode
        self.predictor_activation = predictor_activation
        self.dtype = dtype
        self.gathers = gathers

    def trace(self, op: OpBuilder, x: ir.Value, *weights: ir.Value) -> ir.Value:
        # TensorRT inlines bodies, and wants node names that no other part of the graph has.
        op.builder.push_module(BANK_TOPK_FEED_FORWARD.name)
        predictor_0, predictor_1, gate, up, down = weights
        logits = predict_logits(
            op, x, predictor_0, predictor_1, self.predictor_activation, self.dtype
        )
        bank_size, top_k = _attribute(op, "bank_size"), _attribute(op, "top_k")
        # Cast and Transpose of constants fold when a session is made, if outside of a branch.
        dense = [transpose_weight(op, weight, self.dtype) for weight in (gate, up)]
        dense.append(down)
        if not self.gathers:
            return self._mask(op, x, logits, select_channels(op, logits, bank_size, top_k), dense)
        values, indices = self._find_largest(op, logits, bank_size, top_k)

        def scattered(inner: OpBuilder) -> ir.Value:
            inner.builder.push_module(f"{BANK_TOPK_FEED_FORWARD.name}.scattered")
            return self._scatter(inner, x, values, indices, bank_size, dense)

        def gathered(inner: OpBuilder) -> ir.Value:
            inner.builder.push_module(f"{BANK_TOPK_FEED_FORWARD.name}.gathered")
            return self._gather(inner, x, values, indices, bank_size, (gate, up, down))

        # Two rows share few channels: gathering theirs takes as long as computing all of them
        # (benchmarks/results.md).
        is_one = op.Equal(op.Size(x), op.Squeeze(op.Shape(gate, start=1, end=2)))
        return op.If(
            is_one,
            then_branch=_branch(op, gathered, "gathered"),
            else_branch=_branch(op, scattered, "scattered"),
        )

    def _mask(
        self, op: OpBuilder, x: ir.Value, logits: ir.Value, chosen: ir.Value, dense: list[ir.Value]
    ) -> ir.Value:
        """All channels, those not chosen set to zero."""
        gate, up, down = dense
        inner = self._apply_gate(op, logits, op.MatMul(x, gate), op.MatMul(x, up))
        # Not a product: what is not chosen is zero even where 16 bits could not hold it.
        zero = op.CastLike(op.Constant(value_float=0.0), inner)
        return op.MatMul(op.Where(chosen, inner, zero), down)

    def _find_largest(
        self, op: OpBuilder, logits: ir.Value, bank_size: ir.Value, top_k: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """The chosen logits and their places within the banks, in any order: [B, R, banks, k].

        By ONNX's definition, which ONNX Runtime keeps, the lower index goes before its equals.
        """
        shape = op.Concat(op.Constant(value_ints=[0, 0, -1]), bank_size, axis=0)
        values, indices = op.TopK(op.Reshape(logits, shape), top_k, axis=-1, sorted=0, _outputs=2)
        return values, indices

    def _scatter(
        self,
        op: OpBuilder,
        x: ir.Value,
        values: ir.Value,
        indices: ir.Value,
        bank_size: ir.Value,
        dense: list[ir.Value],
    ) -> ir.Value:
        """All channels, behind a gate that is zero where it was not scattered to."""
        gate, up, down = dense
        if self.gate_mode == "sigmoid":
            factors = op.Sigmoid(values)
        else:
            factors = op.ConstantOfShape(op.Shape(values), value=ir.tensor(np.ones(1, np.float32)))
        shape = op.Concat(op.Shape(values, start=0, end=3), bank_size, axis=0)
        gates = op.ScatterElements(op.ConstantOfShape(shape), indices, factors, axis=3)
        u = op.Mul(op.MatMul(x, gate), op.Reshape(gates, op.Constant(value_ints=[0, 0, -1])))
        if self.gate_mode == "silu":
            u = op.Mul(u, op.Sigmoid(u))
        return op.MatMul(op.Mul(u, op.MatMul(x, up)), down)

    def _gather(
        self,
        op: OpBuilder,
        x: ir.Value,
        values: ir.Value,
        indices: ir.Value,
        bank_size: ir.Value,
        weights: tuple[ir.Value, ir.Value, ir.Value],
    ) -> ir.Value:
        """Of one row only the chosen channels: their rows of W_gate, W_up and W_down transposed."""
        # From the shape of a weight, so that all of it folds into one constant.
        end = op.Squeeze(op.Shape(weights[0], start=0, end=1))
        firsts = op.Range(op.Constant(value_int=0), end, op.Squeeze(bank_size))
        places = op.Add(indices, op.Unsqueeze(firsts, op.Constant(value_ints=[-1])))
        channels = op.Reshape(places, op.Constant(value_ints=[-1]))
        gate, up, down = (op.Gather(weight, channels) for weight in weights)
        u, v = (op.MatMul(x, transpose_weight(op, weight, self.dtype)) for weight in (gate, up))
        logits = op.Reshape(values, op.Constant(value_ints=[0, 0, -1]))
        return op.MatMul(self._apply_gate(op, logits, u, v), down)

    def _apply_gate(self, op: OpBuilder, logits: ir.Value, u: ir.Value, v: ir.Value) -> ir.Value:
        if self.gate_mode == "sigmoid":
            u = op.Mul(u, op.CastLike(op.Sigmoid(logits), u))
        elif self.gate_mode == "silu":
            u = op.Mul(u, op.Sigmoid(u))
        return op.Mul(u, v)


def _attribute(op: OpBuilder, name: str) -> ir.Value:
    """An integer attribute as int64 [1]."""
    value = op.Constant(value_int=ir.RefAttr("value_int", name, ir.AttributeType.INT))
    return op.Reshape(value, op.Constant(value_ints=[1]))


def _branch(op: OpBuilder, trace: Callable[[OpBuilder], ir.Value], name: str) -> ir.Graph:
    return op.builder.subgraph(trace, inputs=[], outputs=[ir.Value(name=name)], name=name)
