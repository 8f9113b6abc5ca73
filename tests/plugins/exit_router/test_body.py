"""The function body of `quatrain::ExitRouter`, run by ONNX Runtime, against the reference."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnxscript import GraphBuilder

from quatrain.plugins.exit_router.body import EXIT_ROUTER, exit_router_function
from quatrain.plugins.exit_router.reference import RouterBlock, route_exit
from quatrain.plugins.operator import DOMAIN, DOMAIN_VERSION

HIDDEN, ROUTER, INNER = 24, 10, 14


def make_parameters(num_blocks: int) -> list[np.ndarray]:
    rng = np.random.default_rng(num_blocks)

    def draw(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    blocks = []
    for j in range(num_blocks):
        width = HIDDEN if j == 0 else ROUTER
        blocks += [draw(INNER, width), draw(INNER), draw(ROUTER, INNER), draw(ROUTER)]
    return [draw(HIDDEN), *blocks, draw(ROUTER), draw(2, ROUTER), draw(2)]


def run_body(
    hidden: np.ndarray, parameters: list[np.ndarray], num_blocks: int, temperature: float
) -> list[np.ndarray]:
    graph = ir.Graph([], [], nodes=[], name="g", opset_imports={"": 24, DOMAIN: DOMAIN_VERSION})
    builder = GraphBuilder(graph)
    values = [
        builder.input(f"i{n}", ir.DataType.FLOAT, list(array.shape))
        for n, array in enumerate([hidden, *parameters])
    ]
    outputs = builder.op.call(
        exit_router_function(num_blocks, ir.DataType.FLOAT, 24),
        *values,
        epsilon=1e-5,
        temperature=temperature,
        **EXIT_ROUTER.plugin_attributes,
    )
    shape = [*hidden.shape[:-1]]
    sizes = (HIDDEN, 2)
    for name, value, size in zip(("normed", "log_probs"), outputs, sizes, strict=True):
        value.type = ir.TensorType(ir.DataType.FLOAT)
        value.shape = ir.Shape([*shape, size])
        builder.add_output(value, name)
    model = ir.Model(graph, ir_version=12)
    model.functions.update(builder.functions)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    feeds = {f"i{n}": array for n, array in enumerate([hidden, *parameters])}
    return session.run(None, feeds)


@pytest.mark.parametrize("num_blocks", [1, 2, 3])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_body_equals_reference(num_blocks: int, temperature: float):
    parameters = make_parameters(num_blocks)
    hidden = np.random.default_rng(9).normal(size=(2, 5, HIDDEN)).astype(np.float32) * 4
    blocks = [RouterBlock(*parameters[1 + 4 * j : 5 + 4 * j]) for j in range(num_blocks)]
    expected = route_exit(
        hidden, parameters[0], blocks, *parameters[-3:], epsilon=1e-5, temperature=temperature
    )
    found = run_body(hidden, parameters, num_blocks, temperature)
    for name, e, f in zip(("normed", "log_probs"), expected, found, strict=True):
        np.testing.assert_allclose(f, e, atol=2e-6 * np.abs(e).max(), rtol=1e-5, err_msg=name)


def test_log_probs_stay_finite_when_the_router_is_sure():
    parameters = make_parameters(1)
    parameters[-1] = np.array([-300.0, 300.0], np.float32)
    hidden = np.ones((1, 1, HIDDEN), np.float32)
    _, log_probs = run_body(hidden, parameters, 1, 1.0)
    assert np.isfinite(log_probs).all()
    assert log_probs[0, 0, 0] < -500


def test_reference_probabilities_sum_to_one():
    parameters = make_parameters(2)
    hidden = np.random.default_rng(2).normal(size=(7, HIDDEN)).astype(np.float32)
    blocks = [RouterBlock(*parameters[1 + 4 * j : 5 + 4 * j]) for j in range(2)]
    normed, log_probs = route_exit(hidden, parameters[0], blocks, *parameters[-3:], epsilon=1e-6)
    np.testing.assert_allclose(np.exp(log_probs).sum(-1), 1.0, atol=1e-6)
    rms = np.sqrt(np.mean((normed / parameters[0]) ** 2, axis=-1))
    np.testing.assert_allclose(rms, 1.0, atol=1e-4)
