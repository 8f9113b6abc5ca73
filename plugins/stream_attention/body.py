"""`quatrain::StreamFactorizedAttention` as an ONNX function of standard operators."""

import onnx_ir as ir
from onnxscript import OpBuilder, build_function

from quatrain.plugins.operator import DOMAIN
from quatrain.plugins.stream_attention.plugin import STREAM_FACTORIZED_ATTENTION

__all__ = ["STREAM_FACTORIZED_ATTENTION", "stream_factorized_attention_function"]


def stream_factorized_attention_function(
    opset_version: int, *, static_caches: bool = True
) -> ir.Function:
    """The body for `n` streams folded into the heads; `reference.py` says what it computes.

    Inputs: query [B, n*Hq, T, D]; key_cache, value_cache [B, n*Hkv, C, D]; position_ids int64
    [B, T]; attention_mask bool [B, 1, T, L], True where a query may attend, L the live length.
    Output: [B, n*Hq, T, D]. Attributes: scale; window (0: none).

    Positions and window say the same as the mask does. The body needs the mask, since ONNX's
    attention has no other way to be told; a kernel needs the positions, and skips what lies behind.

    Args:
        static_caches: Whether C may be more than L, so that what lies behind has to be cut off.
    """
    names = ["query", "key_cache", "value_cache", "position_ids", "attention_mask"]
    return build_function(
        lambda op, *inputs: _attend(op, *inputs, static_caches=static_caches),
        [ir.Value(name=name) for name in names],
        domain=DOMAIN,
        name=STREAM_FACTORIZED_ATTENTION.name,
        attributes=[
            ir.Attr("scale", ir.AttributeType.FLOAT, None),
            ir.Attr("window", ir.AttributeType.INT, 0),
        ],
        opset_imports={"": opset_version},
    )


def _attend(
    op: OpBuilder,
    query: ir.Value,
    key_cache: ir.Value,
    value_cache: ir.Value,
    position_ids: ir.Value,
    attention_mask: ir.Value,
    *,
    static_caches: bool,
) -> ir.Value:
    # TensorRT inlines bodies, and wants node names that no other part of the graph has.
    op.builder.push_module(STREAM_FACTORIZED_ATTENTION.name)
    if static_caches:
        start, axis = op.Constant(value_ints=[0]), op.Constant(value_ints=[2])
        # Without the Slice the cost would follow the capacity.
        length = op.Shape(attention_mask, start=3, end=4)
        key_cache = op.Slice(key_cache, start, length, axis)
        value_cache = op.Slice(value_cache, start, length, axis)
    return op.Attention(
        query,
        key_cache,
        value_cache,
        attention_mask,
        scale=ir.RefAttr("scale", "scale", ir.AttributeType.FLOAT),
    )
