"""The builder that remembers builds what onnxscript's own does, and works each node out once."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnxscript import GraphBuilder, OpBuilder

from quatrain.exporter.checkpoint import open_checkpoint
from quatrain.exporter.checkpoint.lazy_tensor import SUPPORTED_DTYPES
from quatrain.exporter.decoder import graphs
from quatrain.exporter.decoder.device import Device
from quatrain.exporter.decoder.graph_builder import RememberingGraphBuilder

GOLDEN = sorted((Path(__file__).parents[2] / "golden").glob("*/checkpoint"))
INFERENCE = "pkg.onnxscript.shape_inference_error"

Trace = Callable[[OpBuilder, ir.Value], ir.Value]


def start(kind: type[GraphBuilder]) -> tuple[GraphBuilder, ir.Value]:
    builder = kind(ir.Graph([], [], nodes=[], name="g", opset_imports={"": 24}))
    return builder, builder.input("x", ir.DataType.FLOAT, ["batch", 6])


def serialize(builder: GraphBuilder) -> bytes:
    return ir.to_proto(ir.Model(builder.graph, ir_version=12)).SerializeToString()


@pytest.mark.parametrize("device", ["cpu", "engine"])
@pytest.mark.parametrize("folder", GOLDEN, ids=lambda folder: folder.parent.name)
def test_every_kind_of_decoder_is_the_same_byte_for_byte(
    folder: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_checkpoint(folder)
    stored = {name: SUPPORTED_DTYPES[t.dtype] for name, t in opened.tensors.items()}

    def build() -> list[bytes]:
        found = graphs.build_graphs(opened.spec, stored, "float16", 16, device=device)
        for graph in found:
            for value in graph.model.graph.initializers.values():
                value.const_value = value.const_value or ir.tensor(np.zeros(1, np.float32))
        return [ir.to_proto(graph.model).SerializeToString() for graph in found]

    remembering = build()
    monkeypatch.setattr(graphs, "RememberingGraphBuilder", GraphBuilder)
    assert remembering == build()


PAIRS: dict[str, tuple[Trace, Trace]] = {
    "an attribute": (lambda op, x: op.Concat(x, x, axis=0), lambda op, x: op.Concat(x, x, axis=1)),
    "a type to cast to": (
        lambda op, x: op.Cast(x, to=ir.DataType.FLOAT16),
        lambda op, x: op.Cast(x, to=ir.DataType.INT64),
    ),
    "a constant": (lambda op, x: op.Reshape(x, [2, 3]), lambda op, x: op.Reshape(x, [3, 2])),
    "an order": (
        lambda op, x: op.Transpose(x, perm=[0, 1]),
        lambda op, x: op.Transpose(x, perm=[1, 0]),
    ),
    "an input left out": (
        lambda op, x: op.Clip(x, 0.0, None),
        lambda op, x: op.Clip(x, None, 0.0),
    ),
    "a type": (lambda op, x: op.Neg(x), lambda op, x: op.Neg(op.Cast(x, to=ir.DataType.INT32))),
    "a shape": (lambda op, x: op.Neg(x), lambda op, x: op.Neg(op.Transpose(x, perm=[1, 0]))),
    "outputs": (lambda op, x: op.Dropout(x), lambda op, x: op.Dropout(x, _outputs=2)[0]),
}


@pytest.mark.parametrize("difference", PAIRS)
def test_nodes_that_differ_are_not_taken_for_each_other(difference: str) -> None:
    found = []
    for kind in (RememberingGraphBuilder, GraphBuilder):
        builder, x = start(kind)
        for trace in (*PAIRS[difference], *PAIRS[difference]):
            y = trace(builder.op, x)
            y.name = f"y{len(builder.graph.outputs)}"
            assert y.dtype is not None and INFERENCE not in y.producer().metadata_props
            builder.add_output(y, None)
        found.append(serialize(builder))
    assert found[0] == found[1]


def test_what_is_remembered_is_not_shared() -> None:
    builder, x = start(RememberingGraphBuilder)
    first, second, third = (builder.op.Neg(x) for _ in range(3))
    for value in (first, second):
        value.shape[0] = 7
        value.type.dtype = ir.DataType.DOUBLE
    assert (third.dtype, third.shape) == (ir.DataType.FLOAT, ["batch", 6])
    assert builder.op.Neg(x).shape == ["batch", 6]


def test_an_equal_node_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    worked_out: list[str] = []
    infer, sort = GraphBuilder._infer_shapes, GraphBuilder._partition_inputs_attributes

    def count_inference(builder: GraphBuilder, node: ir.Node) -> None:
        worked_out.append("infer")
        infer(builder, node)

    def count_sorting(builder: GraphBuilder, *args: object) -> object:
        worked_out.append("sort")
        return sort(builder, *args)

    monkeypatch.setattr(GraphBuilder, "_infer_shapes", count_inference)
    monkeypatch.setattr(GraphBuilder, "_partition_inputs_attributes", count_sorting)
    builder, x = start(RememberingGraphBuilder)
    for _ in range(5):
        builder.op.Transpose(x, perm=[1, 0])
    assert sorted(worked_out) == ["infer", "sort"]


def test_what_an_operator_does_not_take_is_refused_however_often_it_was_called() -> None:
    builder, x = start(RememberingGraphBuilder)
    builder.op.Transpose(x, perm=[1, 0])
    builder.op.Transpose(x, perm=[1, 0])
    with pytest.raises(TypeError, match="order"):
        builder.op.Transpose(x, order=[1, 0])
    with pytest.raises(TypeError, match="Too many"):
        builder.op.Transpose(x, x, x, x, perm=[1, 0])


def test_a_node_that_cannot_be_inferred_says_so_every_time() -> None:
    builder, x = start(RememberingGraphBuilder)
    nodes = [builder.op.Concat(x, x, axis=5).producer() for _ in range(2)]
    assert all(INFERENCE in node.metadata_props for node in nodes)
