"""The bodies of `quatrain::BankTopKFeedForward`, run by ONNX Runtime, against the reference.

`gathers` is the body for a CPU, which for one row reads the chosen channels' weights only and for
more rows scatters the gates; the other one, for engines, masks.
"""

from functools import cache

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnxscript import GraphBuilder

from quatrain.plugins.bank_topk_ffn.body import (
    BANK_TOPK_FEED_FORWARD,
    bank_topk_feed_forward_function,
)
from quatrain.plugins.bank_topk_ffn.reference import bank_topk_feed_forward, select_channels
from quatrain.plugins.operator import DOMAIN, DOMAIN_VERSION

TOLERANCE = 1e-6  # fp32, of the largest result without cancellation
NAMES = ("x", "predictor_0", "predictor_1", "gate", "up", "down")
SHAPES = (["b", "r", "d"], ["k", "d"], ["c", "k"], ["c", "d"], ["c", "d"], ["c", "d"])
GATES = ("sigmoid", "hard", "silu")
Arrays = dict[str, np.ndarray]


@cache
def make_session(
    gate_mode: str, activation: str, bank_size: int, top_k: int, gathers: bool
) -> onnxruntime.InferenceSession:
    graph = ir.Graph([], [], nodes=[], name="g", opset_imports={"": 24, DOMAIN: DOMAIN_VERSION})
    builder = GraphBuilder(graph)
    values = [
        builder.input(name, ir.DataType.FLOAT, shape)
        for name, shape in zip(NAMES, SHAPES, strict=True)
    ]
    y = builder.op.call(
        bank_topk_feed_forward_function(
            gate_mode, activation, ir.DataType.FLOAT, 24, gathers=gathers
        ),
        *values,
        bank_size=bank_size,
        top_k=top_k,
        gate_mode=gate_mode,
        predictor_activation=activation,
        **BANK_TOPK_FEED_FORWARD.plugin_attributes,
    )
    y.type = ir.TensorType(ir.DataType.FLOAT)
    y.shape = ir.Shape(["b", "r", "d"])
    builder.add_output(y, "y")
    model = ir.Model(graph, ir_version=12)
    model.functions.update(builder.functions)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto)
    return onnxruntime.InferenceSession(proto.SerializeToString())


def make_arrays(
    rows: tuple[int, int], hidden: int, channels: int, rank: int, seed: int = 0
) -> Arrays:
    rng = np.random.default_rng(seed)
    sizes = {"d": hidden, "c": channels, "k": rank, "b": rows[0], "r": rows[1]}
    return {
        name: rng.normal(size=[sizes[s] for s in shape]).astype(np.float32)
        for name, shape in zip(NAMES, SHAPES, strict=True)
    }


def bound_magnitude(arrays: Arrays) -> float:
    """The largest result that sums of these magnitudes can have without cancelling: what rounding
    is measured against."""
    x, _, _, gate, up, down = (np.abs(np.nan_to_num(arrays[name], nan=0.0)) for name in NAMES)
    return float((((x @ gate.T) * (x @ up.T)) @ down).max())


def check(
    arrays: Arrays, bank_size: int, top_k: int, gate_mode: str = "sigmoid", activation: str = "none"
) -> np.ndarray:
    """Both bodies against the reference; what the CPU's gave."""
    expected = bank_topk_feed_forward(
        *arrays.values(),
        bank_size=bank_size,
        top_k=top_k,
        gate_mode=gate_mode,
        predictor_activation=activation,
    )
    for gathers in (False, True):
        session = make_session(gate_mode, activation, bank_size, top_k, gathers)
        (found,) = session.run(None, arrays)
        atol = TOLERANCE * bound_magnitude(arrays)
        np.testing.assert_allclose(found, expected, atol=atol, rtol=1e-5, err_msg=str(gathers))
    return found


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    rows=st.tuples(st.integers(1, 2), st.integers(1, 5)),
    hidden=st.integers(1, 12),
    banks=st.integers(1, 4),
    bank=st.sampled_from([(2, 1), (8, 3), (32, 8), (64, 16), (128, 32), (8, 8)]),
    rank=st.integers(1, 6),
    gate_mode=st.sampled_from(GATES),
    activation=st.sampled_from(["none", "relu", "silu"]),
)
def test_bodies_equal_reference(rows, hidden, banks, bank, rank, gate_mode, activation):
    arrays = make_arrays(rows, hidden, banks * bank[0], rank)
    check(arrays, *bank, gate_mode, activation)


@pytest.mark.parametrize("rows", [(1, 1), (2, 3)], ids=["one row", "many rows"])
@pytest.mark.parametrize("gate_mode", GATES)
def test_ties_go_to_the_lowest_index(rows: tuple[int, int], gate_mode: str):
    """All logits equal, and a cut through a group of equal ones, zeros of both signs among them."""
    arrays = make_arrays(rows, 8, 128, 4)
    arrays["predictor_1"][:] = 0
    arrays["predictor_1"][64:96:2] = -0.0
    arrays["predictor_1"][100:104] = arrays["predictor_1"][70] + 1
    check(arrays, 64, 16, gate_mode)
    # All of them equal: the first 16 of each bank, and no others, make the result.
    arrays["predictor_1"][:] = 0
    found = check(arrays, 64, 16, gate_mode)
    for name in ("gate", "up"):
        arrays[name][16:64] = arrays[name][80:] = 7.0
    assert np.array_equal(check(arrays, 64, 16, gate_mode), found)


@pytest.mark.parametrize("rows", [(1, 1), (1, 4)], ids=["one row", "many rows"])
def test_nan_never_takes_the_place_of_a_finite_logit(rows: tuple[int, int]):
    arrays = make_arrays(rows, 8, 64, 4)
    arrays["predictor_1"][:40] = np.nan
    found = check(arrays, 64, 16)
    assert np.isfinite(found).all()
    # With fewer than 16 finite ones the first of the others fill up, behind a gate of zero.
    arrays["predictor_1"][:60] = np.nan
    assert np.isfinite(check(arrays, 64, 16)).all()


@pytest.mark.parametrize("rows", [(1, 1), (1, 4)], ids=["one row", "many rows"])
@pytest.mark.parametrize("gate_mode", GATES)
def test_inactive_channels_add_exactly_nothing(rows: tuple[int, int], gate_mode: str):
    """However large they are, the result stays the same to the bit."""
    arrays = make_arrays(rows, 8, 64, 64)
    arrays["predictor_1"] = np.zeros_like(arrays["predictor_1"])
    found = check(arrays, 64, 16, gate_mode)
    arrays["gate"][16:] *= 1e17
    arrays["up"][16:] *= 1e17
    assert np.array_equal(check(arrays, 64, 16, gate_mode), found)


def test_all_channels_of_a_bank_are_a_dense_network():
    arrays = make_arrays((1, 3), 8, 64, 4)
    u = arrays["x"] @ arrays["gate"].T
    expected = (u / (1 + np.exp(-u)) * (arrays["x"] @ arrays["up"].T)) @ arrays["down"]
    found = check(arrays, 32, 32, "silu")
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def test_selection_by_hand():
    scores = np.array([3.0, 1, 3, 3, np.nan, -np.inf, -1, np.nan, 0.0, -0.0, 0, 0])
    chosen = select_channels(scores, 4, 2)
    assert np.flatnonzero(chosen[:4]).tolist() == [0, 2]
    assert np.flatnonzero(chosen[4:8]).tolist() == [0, 2]  # NaN ties with -inf, behind -1
    assert np.flatnonzero(chosen[8:]).tolist() == [0, 1]
