"""Adds what is computed within a graph to its outputs: the embedding, the residual stream in every
layer, the channels that were chosen, the state that the head reads."""

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import NodeProto, TensorProto
from onnx.inliner import inline_local_functions

from quatrain.exporter.checkpoint.names import feed_forward_name
from quatrain.exporter.decoder.live_rows import Rows, plan_live_rows
from quatrain.exporter.probe_graph import read_row_spec
from quatrain.runtime.manifest import Graph, Manifest, TensorInfo

__all__ = ["tap_graph"]


def tap_graph(
    proto: onnx.ModelProto, manifest: Manifest, graph: Graph
) -> tuple[onnx.ModelProto, list[TensorInfo]]:
    """The graph with more outputs, and what these are.

    Each is float32 [B, R, rows * d], a token's rows side by side, of the rows that a layer runs;
    where it runs only those whose result is wanted, [B, E, rows * d]. Names are the reference's. A
    value that is an output already, or an input, is left out.
    """
    # What is chosen is computed within an operator.
    proto = inline_local_functions(proto)
    taps = list(_list_taps(proto, manifest, graph))
    made = {name for node in proto.graph.node for name in node.output}
    outputs = {output.name for output in proto.graph.output}
    infos = []
    for info, source in taps:
        if source in made and not outputs & {source, info.name}:
            _add_output(proto, info, source)
            infos.append(info)
    return proto, infos


def _list_taps(
    proto: onnx.ModelProto, manifest: Manifest, graph: Graph
) -> Iterable[tuple[TensorInfo, str]]:
    """Every output there may be, and the value that it is."""
    spec = read_row_spec(manifest)
    layers = [layer.layer for layer in manifest.cache.layers if layer.graph == graph.name]
    plan = plan_live_rows(spec, layers)
    hidden, inner = spec.backbone.hidden_size, spec.backbone.intermediate_size
    count = {rows: spec.num_streams if rows == Rows.ALL else 1 for rows in Rows}
    if 0 in plan:
        yield _describe("embedding", plan[0].entering, count[plan[0].entering] * hidden)
    for layer, rows in plan.items():
        for part in ("attention", "output"):
            name = f"layers.{layer}.{part}"
            yield _describe(name, rows.leaving, count[rows.leaving] * hidden)
        chosen = _find_choice(proto.graph, layer)
        if chosen is not None:
            info, _ = _describe(
                f"layers.{layer}.active_channels", rows.leaving, count[rows.leaving] * inner
            )
            yield info, _mark_chosen(proto.graph, chosen, info.name)
    if graph.role == "decoder":
        info, _ = _describe("hidden", Rows.WANTED, hidden)
        yield info, _find_head_input(proto.graph)


def _describe(name: str, rows: Rows, width: int) -> tuple[TensorInfo, str]:
    axis = "outputs" if rows == Rows.WANTED else "rows"
    return TensorInfo(name=name, dtype="float32", shape=["batch", axis, width]), name


def _add_output(proto: onnx.ModelProto, info: TensorInfo, source: str) -> None:
    """Lay the rows of a token side by side, and give the value out as float32.

    The value that bears the name of the output gets another one.
    """
    graph = proto.graph
    if source == info.name:
        source = f"{info.name}.value"
        _rename(graph, info.name, source)
    shape = f"{info.name}.shape"
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, -1, info.shape[2]]), shape))
    wide = f"{info.name}.float32"
    graph.node.append(onnx.helper.make_node("Cast", [source], [wide], to=TensorProto.FLOAT))
    graph.node.append(onnx.helper.make_node("Reshape", [wide, shape], [info.name]))
    graph.output.append(
        onnx.helper.make_tensor_value_info(info.name, TensorProto.FLOAT, info.shape)
    )


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name == old:
                    names[index] = new


def _find_choice(graph: onnx.GraphProto, layer: int) -> NodeProto | None:
    """The TopK that picks the channels of a layer; None where all of them run.

    It depends on the predictor's last weight, or without a predictor on the up projection's.
    """
    stored = {tensor.name for tensor in graph.initializer}
    predictor = feed_forward_name(layer, "predictor.1")
    weight = predictor if predictor in stored else feed_forward_name(layer, "up_proj")
    reached = {weight}
    node: NodeProto
    for node in graph.node:
        if not reached.intersection(node.input):
            continue
        if node.op_type == "TopK":
            return node
        if f"layers.{layer}.output" in node.output:
            return None
        reached.update(node.output)
    return None


def _mark_chosen(graph: onnx.GraphProto, choice: NodeProto, name: str) -> str:
    """A value that is 1 where TopK chose and 0 elsewhere, float32 [B, rows, banks, bank size]."""
    one = onnx.numpy_helper.from_array(np.ones(1, np.float32))
    zero = onnx.numpy_helper.from_array(np.zeros(1, np.float32))
    make = onnx.helper.make_node
    nodes = [
        make("Shape", [choice.input[0]], [f"{name}.all_shape"]),
        make("ConstantOfShape", [f"{name}.all_shape"], [f"{name}.zeros"], value=zero),
        make("Shape", [choice.output[1]], [f"{name}.chosen_shape"]),
        make("ConstantOfShape", [f"{name}.chosen_shape"], [f"{name}.ones"], value=one),
        make(
            "ScatterElements",
            [f"{name}.zeros", choice.output[1], f"{name}.ones"],
            [f"{name}.marks"],
            axis=3,
        ),
    ]
    graph.node.extend(nodes)
    return f"{name}.marks"


def _find_head_input(graph: onnx.GraphProto) -> str:
    """What the product that makes `logits` multiplies with the head."""
    value = "logits"
    for node in reversed(graph.node):
        if value in node.output:
            if node.op_type != "Cast":
                return str(node.input[0])
            value = node.input[0]
    return ""
