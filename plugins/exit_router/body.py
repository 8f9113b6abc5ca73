"""`quatrain::ExitRouter` as an ONNX function of standard operators, all in fp32 inside."""

import onnx_ir as ir
from onnxscript import OpBuilder, build_function

from quatrain.plugins.exit_router.plugin import EXIT_ROUTER
from quatrain.plugins.operator import DOMAIN

__all__ = ["EXIT_ROUTER", "exit_router_function"]

_BLOCK = ("fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias")


def exit_router_function(num_blocks: int, dtype: ir.DataType, opset_version: int) -> ir.Function:
    """The body for routers of `num_blocks` MLP blocks over tensors of `dtype`.

    Inputs: hidden [..., H], norm_weight [H], per block fc1_weight, fc1_bias, fc2_weight, fc2_bias,
    router_norm_weight [R], head_weight [2, R], head_bias [2]; all of `dtype`.
    Attributes: epsilon, temperature. Outputs: normed [..., H] of `dtype`, log_probs float32
    [..., 2]. `reference.py` says what it computes.
    """
    blocks = [f"block{j}_{name}" for j in range(num_blocks) for name in _BLOCK]
    names = ["hidden", "norm_weight", *blocks, "router_norm_weight", "head_weight", "head_bias"]
    return build_function(
        lambda op, *inputs: _route_exit(op, list(inputs), num_blocks, dtype),
        [ir.Value(name=name) for name in names],
        domain=DOMAIN,
        name=EXIT_ROUTER.name,
        attributes=[
            ir.Attr("epsilon", ir.AttributeType.FLOAT, None),
            ir.Attr("temperature", ir.AttributeType.FLOAT, None),
        ],
        opset_imports={"": opset_version},
    )


def _route_exit(
    op: OpBuilder, inputs: list[ir.Value], num_blocks: int, dtype: ir.DataType
) -> list[ir.Value]:
    # TensorRT inlines bodies, and wants node names that no other part of the graph has.
    op.builder.push_module(EXIT_ROUTER.name)
    if dtype != ir.DataType.FLOAT:
        inputs = [op.Cast(value, to=ir.DataType.FLOAT) for value in inputs]
    hidden, norm_weight = inputs[:2]
    router_norm_weight, head_weight, head_bias = inputs[-3:]
    normed = state = _normalize(op, hidden, norm_weight)
    for j in range(num_blocks):
        fc1_weight, fc1_bias, fc2_weight, fc2_bias = inputs[2 + 4 * j : 6 + 4 * j]
        state = op.Gelu(_linear(op, state, fc1_weight, fc1_bias))
        state = _linear(op, state, fc2_weight, fc2_bias)
    logits = _linear(op, _normalize(op, state, router_norm_weight), head_weight, head_bias)
    temperature = op.Constant(
        value_float=ir.RefAttr("value_float", "temperature", ir.AttributeType.FLOAT)
    )
    log_probs = op.LogSoftmax(op.Div(logits, temperature), axis=-1)
    if dtype != ir.DataType.FLOAT:
        normed = op.Cast(normed, to=dtype)
    return [normed, log_probs]


def _normalize(op: OpBuilder, x: ir.Value, weight: ir.Value) -> ir.Value:
    epsilon = ir.RefAttr("epsilon", "epsilon", ir.AttributeType.FLOAT)
    return op.RMSNormalization(x, weight, axis=-1, epsilon=epsilon)


def _linear(op: OpBuilder, x: ir.Value, weight: ir.Value, bias: ir.Value) -> ir.Value:
    return op.Add(op.MatMul(x, op.Transpose(weight, perm=[1, 0])), bias)
