"""A rewritten graph rounds after every operator, and ONNX Runtime keeps what rounds."""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.exporter.comparison.bundles import export

from quatrain.exporter.comparison.rounded_graph import describe_rounded, round_graph
from quatrain.runtime.manifest import GraphVariant, TensorInfo

KINDS = {
    TensorProto.FLOAT16: np.dtype(np.float16),
    TensorProto.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}


def make_model(kind: int, weight: np.ndarray) -> onnx.ModelProto:
    """y = (cast(x) @ w - cast(x)) * cast(x), of a 16-bit type within and float32 at the edges."""
    nodes = [
        helper.make_node("Cast", ["x"], ["low"], to=kind),
        helper.make_node("Transpose", ["w"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["low", "turned"], ["product"]),
        helper.make_node("Sub", ["product", "low"], ["change"]),
        helper.make_node("Mul", ["change", "low"], ["result"]),
        helper.make_node("Cast", ["result"], ["y"], to=TensorProto.FLOAT),
    ]
    stored = numpy_helper.from_array(weight, "w")
    shape = ["rows", 16]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [stored],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=12)


def low(array: np.ndarray, kind: int) -> np.ndarray:
    """Rounded to 16 bits, and back."""
    return array.astype(KINDS[kind]).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_every_result_is_rounded(kind: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    # Numbers whose products and sums float32 holds exactly, so that the order of sums is nothing.
    weight = (rng.integers(-64, 64, (16, 16)) / 64).astype(KINDS[kind])
    x = (rng.integers(-8192, 8192, (8, 16)) / 1024).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    session = onnxruntime.InferenceSession(
        round_graph(make_model(kind, weight)).SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
    )
    (y,) = session.run(None, {"x": x})
    wide = weight.astype(np.float32)
    rounded = low(x, kind)
    product = low(rounded @ wide.T, kind)
    expected = low(low(product - rounded, kind) * rounded, kind)
    np.testing.assert_array_equal(y, expected)
    exact = (x @ wide.T - x) * x
    assert np.abs(y - exact).max() > 1e-4
    casts = [n for n in onnx.load(tmp_path / "optimized.onnx").graph.node if n.op_type == "Cast"]
    assert len(casts) == 8, "there and back for the input and three results"


def test_everything_at_the_edge_is_float32(root: Path, tmp_path: Path) -> None:
    bundle = export(root, "nvium", tmp_path / "bundle", dtype="bfloat16")
    path = bundle / "segment_0.engine.bfloat16.onnx"
    proto = round_graph(onnx.load(path, load_external_data=False))
    types = {v.type.tensor_type.elem_type for v in (*proto.graph.input, *proto.graph.output)}
    assert types == {TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL}
    assert not proto.functions
    typed = onnx.shape_inference.infer_shapes(proto)
    assert sum(v.type.tensor_type.elem_type == TensorProto.BFLOAT16 for v in typed.graph.value_info)


def test_a_signature_speaks_of_float32_then() -> None:
    info = TensorInfo(name="key_cache.0", dtype="bfloat16", shape=["batch", 2, 8, 4])
    ids = TensorInfo(name="input_ids", dtype="int64", shape=["batch", "rows"])
    variant = GraphVariant(path="a.onnx", dtype="bfloat16", inputs=[ids, info], outputs=[info])
    inputs, outputs = describe_rounded(variant)
    assert [i.dtype for i in inputs] == ["int64", "float32"]
    assert [o.dtype for o in outputs] == ["float32"]
