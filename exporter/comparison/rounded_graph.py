"""A graph of 16-bit compute type, rewritten to run in float32 and to round as it would.

ONNX Runtime has CPU kernels for few operators in float16 and next to none in bfloat16; for float16
it puts float32 ones in their place and drops the rounding between them, and NumPy knows no
bfloat16. So every operator runs in float32, and what would have been 16 bits is cast there and
back: each result is the nearest 16-bit number to that of the exact operator, which is what hardware
with float32 accumulation gives, but for the order of its sums. ONNX Runtime keeps casts that lose
precision. Everything that crosses the graph's edge, caches included, is float32 then.
"""

from collections.abc import Iterator

import msgspec
import onnx
from onnx import NodeProto, TensorProto
from onnx.inliner import inline_local_functions

from quatrain.exporter.errors import ComparisonError
from quatrain.runtime.manifest import GraphVariant, TensorInfo

__all__ = ["describe_rounded", "round_graph"]

_LOW = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}

# They hand on numbers that are rounded already.
_MOVERS = {
    "Concat",
    "Expand",
    "Gather",
    "GatherElements",
    "GatherND",
    "Identity",
    "Reshape",
    "ScatterElements",
    "Slice",
    "Split",
    "Squeeze",
    "TensorScatter",
    "Transpose",
    "Unsqueeze",
    "Where",
}


def round_graph(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The rewritten graph; operators of ours are opened up, since what they compute is rounded,
    too."""
    proto = onnx.shape_inference.infer_shapes(inline_local_functions(proto))
    graph = proto.graph
    types = _find_types(graph)
    stored = [tensor.name for tensor in graph.initializer if tensor.data_type in _LOW]
    nodes = [_cast(name, f"{name}.float32", TensorProto.FLOAT) for name in stored]
    for node in graph.node:
        _refuse_branches(graph, node)
        for index, name in enumerate(node.input):
            if name in stored:
                node.input[index] = f"{name}.float32"
        nodes += _round_node(node, types)
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type in _LOW:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    return proto


def describe_rounded(variant: GraphVariant) -> tuple[list[TensorInfo], list[TensorInfo]]:
    """Inputs and outputs of the rewritten graph."""
    low = set(_LOW.values())
    return tuple(  # type: ignore[return-value]
        [
            msgspec.structs.replace(info, dtype="float32") if info.dtype in low else info
            for info in infos
        ]
        for infos in (variant.inputs, variant.outputs)
    )


def _find_types(graph: onnx.GraphProto) -> dict[str, int]:
    infos = (*graph.value_info, *graph.input, *graph.output)
    types = {info.name: info.type.tensor_type.elem_type for info in infos}
    missing = [o for node in graph.node for o in node.output if o and not types.get(o)]
    if missing:
        raise ComparisonError(
            f"run {graph.name} in its compute type",
            f"the type of {missing[0]} cannot be told",
            "export the checkpoint again with this version of quatrain",
        )
    return types


def _round_node(node: NodeProto, types: dict[str, int]) -> Iterator[NodeProto]:
    """The node, in float32, with a cast there and back behind each result that was 16 bits."""
    low = [name for name in node.output if types.get(name) in _LOW]
    if not low or node.op_type in _MOVERS:
        yield node
        return
    if node.op_type == "Cast":
        # It says the type itself, and the way back is all that it lacks.
        (name,) = low
        node.output[0] = f"{name}.rounded"
        yield node
        yield _cast(f"{name}.rounded", name, TensorProto.FLOAT)
        return
    exact = {name: f"{name}.exact" for name in low}
    for index, name in enumerate(node.output):
        node.output[index] = exact.get(name, name)
    yield node
    for name in low:
        yield _cast(exact[name], f"{name}.rounded", types[name])
        yield _cast(f"{name}.rounded", name, TensorProto.FLOAT)


def _cast(source: str, target: str, dtype: int) -> NodeProto:
    return onnx.helper.make_node("Cast", [source], [target], name=f"{target}.cast", to=dtype)


def _refuse_branches(graph: onnx.GraphProto, node: NodeProto) -> None:
    if any(attribute.type == onnx.AttributeProto.GRAPH for attribute in node.attribute):
        raise ComparisonError(
            f"run {graph.name} in its compute type",
            f"it has a branch ({node.op_type}), which graphs for engines have not",
            "export the checkpoint again with this version of quatrain",
        )
