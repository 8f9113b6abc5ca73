"""Adds what enters feed-forward networks and the head to the outputs of a graph, in its file."""

from collections.abc import Callable, Collection
from pathlib import Path

import msgspec
import numpy as np
import onnx

from quatrain.exporter.bundle import write_file
from quatrain.exporter.decoder.live_rows import Rows, plan_live_rows
from quatrain.exporter.errors import ExportError
from quatrain.exporter.spec import Backbone, DecoderSpec, Streams
from quatrain.runtime.manifest import Graph, Manifest, TensorInfo

__all__ = ["FFN_INPUT", "HEAD_INPUT", "Edit", "probe_graph", "read_row_spec"]

FFN_INPUT = "ffn_input."
"""A probed output is called this, with the number of its layer."""

HEAD_INPUT = "head_input"
"""The probed output that is the state after the final norm."""

Edit = Callable[[onnx.ModelProto], None]


def probe_graph(
    folder: Path,
    manifest: Manifest,
    graph: Graph,
    layers: Collection[int] | None,
    edit: Edit | None,
    logits: bool,
    states: bool,
) -> Graph:
    """Write the graph again, in its own place, with more outputs (and perhaps fewer)."""
    proto = onnx.load(folder / graph.path, load_external_data=False)
    infos = [
        info
        for info in _describe_outputs(manifest, graph)
        if layers is None or int(info.name.removeprefix(FFN_INPUT)) in layers
    ]
    kept = list(graph.outputs)
    if states:
        kept.append(_add_head_input(proto, manifest))
    if not logits:
        kept = [info for info in kept if info.name != "logits"]
        _drop_output(proto, "logits")
    for info in infos:
        _add_output(proto, info)
    if not logits:
        _drop_dead_nodes(proto.graph)
    if edit is not None:
        edit(proto)
    # A new file under the name of the linked one, whose contents stay as they are.
    write_file(folder / graph.path, proto.SerializeToString())
    return msgspec.structs.replace(graph, outputs=[*kept, *infos])


def _describe_outputs(manifest: Manifest, graph: Graph) -> list[TensorInfo]:
    spec = read_row_spec(manifest)
    layers = [layer.layer for layer in manifest.cache.layers if layer.graph == graph.name]
    infos = []
    for layer, rows in plan_live_rows(spec, layers).items():
        num_rows = spec.num_streams if rows.leaving == Rows.ALL else 1
        shape: list[int | str] = [
            "batch",
            "outputs" if rows.leaving == Rows.WANTED else "rows",
            num_rows * spec.backbone.hidden_size,
        ]
        infos.append(TensorInfo(name=f"{FFN_INPUT}{layer}", dtype="float32", shape=shape))
    return infos


def read_row_spec(manifest: Manifest) -> DecoderSpec:
    """As much of the spec as a plan of rows depends on."""
    backbone = {**manifest.spec["backbone"], "rope_scaling": None, "sliding_windows": ()}
    streams = manifest.spec["streams"]
    return DecoderSpec(
        Backbone(**backbone),
        streams=None if streams is None else msgspec.convert(streams, Streams),
    )


def _add_output(proto: onnx.ModelProto, info: TensorInfo) -> None:
    graph = proto.graph
    layer = info.name.removeprefix(FFN_INPUT)
    # The weight may be cast and transposed on its way to the node that multiplies with it, be
    # that a MatMul or the whole network as one operator; x is the first input of either.
    value = f"model.layers.{layer}.mlp.gate_proj.weight"
    while (node := _find_reader(graph, value)).op_type in ("Cast", "Transpose"):
        value = node.output[0]
    shape = f"{info.name}.shape"
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, -1, info.shape[2]]), shape))
    graph.node.add(op_type="Reshape", input=[node.input[0], shape], output=[info.name])
    graph.output.append(
        onnx.helper.make_tensor_value_info(info.name, onnx.TensorProto.FLOAT, info.shape)
    )


def _add_head_input(proto: onnx.ModelProto, manifest: Manifest) -> TensorInfo:
    """The first input of the product that makes `logits`."""
    graph = proto.graph
    value = "logits"
    while (node := _find_writer(graph, value)).op_type == "Cast":
        value = node.input[0]
    hidden_size = manifest.spec["backbone"]["hidden_size"]
    shape: list[int | str] = ["batch", "outputs", hidden_size]
    # A cast of float32 to itself costs nothing, and other types become what was promised.
    float32 = onnx.TensorProto.FLOAT
    graph.node.add(op_type="Cast", input=[node.input[0]], output=[HEAD_INPUT]).attribute.append(
        onnx.helper.make_attribute("to", float32)
    )
    graph.output.append(onnx.helper.make_tensor_value_info(HEAD_INPUT, float32, shape))
    return TensorInfo(name=HEAD_INPUT, dtype="float32", shape=shape)


def _find_writer(graph: onnx.GraphProto, value: str) -> onnx.NodeProto:
    node: onnx.NodeProto | None = next((node for node in graph.node if value in node.output), None)
    if node is None:
        raise ExportError(
            "find what the head of a bundle reads",
            f"no node of {graph.name} makes {value}",
            "ask for the states of a decoder without exits, exported by this version of quatrain",
        )
    return node


def _find_reader(graph: onnx.GraphProto, value: str) -> onnx.NodeProto:
    node: onnx.NodeProto | None = next((node for node in graph.node if value in node.input), None)
    if node is None:
        raise ExportError(
            "find what enters the feed-forward networks of a bundle",
            f"no node of {graph.name} reads {value}",
            "export the checkpoint again with this version of quatrain",
        )
    return node


def _drop_output(proto: onnx.ModelProto, name: str) -> None:
    kept = [output for output in proto.graph.output if output.name != name]
    del proto.graph.output[:]
    proto.graph.output.extend(kept)


def _drop_dead_nodes(graph: onnx.GraphProto) -> None:
    """Leave out what no output depends on; nodes are in the order in which they can run."""
    needed = {output.name for output in graph.output}
    alive = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            alive.append(node)
    weights = [tensor for tensor in graph.initializer if tensor.name in needed]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(reversed(alive))
    graph.initializer.extend(weights)
