"""The function body of `quatrain::StreamFactorizedAttention`, run by ONNX Runtime, against the
reference: the body is told by a mask what the reference reads off the positions."""

from functools import cache

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnxscript import GraphBuilder

from quatrain.plugins.operator import DOMAIN, DOMAIN_VERSION
from quatrain.plugins.stream_attention.body import (
    STREAM_FACTORIZED_ATTENTION,
    stream_factorized_attention_function,
)
from quatrain.plugins.stream_attention.reference import stream_factorized_attention

TOLERANCE = 2e-6  # fp32, values of magnitude 1
INPUTS = {
    "query": (ir.DataType.FLOAT, ["b", "q", "t", "d"]),
    "key_cache": (ir.DataType.FLOAT, ["b", "kv", "c", "d"]),
    "value_cache": (ir.DataType.FLOAT, ["b", "kv", "c", "d"]),
    "position_ids": (ir.DataType.INT64, ["b", "t"]),
    "attention_mask": (ir.DataType.BOOL, ["b", 1, "t", "l"]),
}


@cache
def make_session(scale: float, window: int) -> onnxruntime.InferenceSession:
    graph = ir.Graph([], [], nodes=[], name="g", opset_imports={"": 24, DOMAIN: DOMAIN_VERSION})
    builder = GraphBuilder(graph)
    values = [builder.input(name, dtype, shape) for name, (dtype, shape) in INPUTS.items()]
    attended = builder.op.call(
        stream_factorized_attention_function(24),
        *values,
        scale=scale,
        window=window,
        **STREAM_FACTORIZED_ATTENTION.plugin_attributes,
    )
    attended.type = ir.TensorType(ir.DataType.FLOAT)
    attended.shape = ir.Shape(["b", "q", "t", "d"])
    builder.add_output(attended, "attended")
    model = ir.Model(graph, ir_version=12)
    model.functions.update(builder.functions)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto)
    return onnxruntime.InferenceSession(proto.SerializeToString())


def make_inputs(
    n: int, kv_heads: int, group: int, tokens: int, head_dim: int, starts: list[int], slack: int
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n + 7 * tokens)
    batch, live = len(starts), max(starts) + tokens
    positions = np.array(starts)[:, None] + np.arange(tokens)
    kv_shape = (batch, n * kv_heads, live + slack, head_dim)
    return {
        "query": rng.normal(size=(batch, n * kv_heads * group, tokens, head_dim)),
        "key_cache": rng.normal(size=kv_shape),
        "value_cache": rng.normal(size=kv_shape),
        "position_ids": positions,
        "attention_mask": np.arange(live) <= positions[:, None, :, None],
    }


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 8),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    tokens=st.integers(1, 9),
    head_dim=st.sampled_from([2, 8, 16]),
    starts=st.lists(st.integers(0, 20), min_size=1, max_size=3),
    slack=st.integers(0, 5),
    window=st.sampled_from([0, 1, 3, 64]),
)
def test_body_equals_reference(n, kv_heads, group, tokens, head_dim, starts, slack, window):
    arrays = make_inputs(n, kv_heads, group, tokens, head_dim, starts, slack)
    floats = {k: arrays[k].astype(np.float32) for k in ("query", "key_cache", "value_cache")}
    arrays |= floats
    scale = head_dim**-0.5
    expected = stream_factorized_attention(
        *floats.values(), arrays["position_ids"], scale=scale, window=window
    )
    if window:
        keys = np.arange(arrays["attention_mask"].shape[-1])
        arrays["attention_mask"] &= keys > arrays["position_ids"][:, None, :, None] - window
    (found,) = make_session(scale, window).run(None, arrays)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=1e-5)


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_a_stream_sees_no_other(stream: int):
    """Whatever the other streams hold, a stream's result stays the same to the bit."""
    arrays = make_inputs(3, 2, 2, 4, 8, [5], 2)
    floats = {k: arrays[k].astype(np.float32) for k in ("query", "key_cache", "value_cache")}
    before = stream_factorized_attention(*floats.values(), arrays["position_ids"], scale=0.3)
    for name, heads in (("query", 4), ("key_cache", 2), ("value_cache", 2)):
        mine = np.zeros(floats[name].shape[1], bool)
        mine[stream * heads : (stream + 1) * heads] = True
        floats[name][:, ~mine] = 99.0
    after = stream_factorized_attention(*floats.values(), arrays["position_ids"], scale=0.3)
    own = slice(stream * 4, stream * 4 + 4)
    assert np.array_equal(after[:, own], before[:, own])
    assert not np.array_equal(after, before)
