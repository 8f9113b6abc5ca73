"""Makes a graph read packed weights: DequantizeLinear and MatMul where there was a MatMul.

TensorRT has products with int4 and int8 weights for that pattern, and ONNX Runtime makes its
MatMulNBits of it when it opens the graph, so one form and one file serve both. Codes are stored as
the MatMul wants them, [K, N]: behind a Transpose the pattern is not seen.
"""

from collections.abc import Iterator, Mapping

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from quatrain.exporter.checkpoint.lazy_tensor import LazyTensor
from quatrain.exporter.quantization.packed_weights import PackedMatrix

__all__ = ["read_packed_weights"]

_CODES = {4: ir.DataType.INT4, 8: ir.DataType.INT8}
_SCALES = {
    "float32": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
}


def read_packed_weights(
    model: ir.Model, matrices: Mapping[str, PackedMatrix], dtype: str, folder: str
) -> int:
    """Change the graph in place; the number of products that changed.

    Args:
        matrices: By name; that of a weight is its initializer's.
        dtype: The compute type of the graph.
        folder: Of the weight file, relative to the graph's own.
    """
    graph, count = model.graph, 0
    for name, matrix in matrices.items():
        operands = list(_find_operands(graph, matrix))
        if not operands:
            continue
        inputs = [_add_codes(graph, name, matrix, folder)]
        inputs.append(_add_scales(graph, name, matrix.scales[dtype], dtype, folder))
        group_size = matrix.shape[0] // matrix.scales[dtype].shape[0]
        node = ir.node(
            "DequantizeLinear",
            inputs,
            attributes={"axis": 0, "block_size": group_size},
            name=f"{name}.dequantize",
        )
        node.outputs[0].name = f"{name}.dequantized"
        graph.insert_before(operands[0], node)
        for operand in operands:
            ir.convenience.replace_all_uses_with(operand.outputs[0], node.outputs[0])
            count += 1
    # Also the weights that nothing reads any more.
    RemoveUnusedNodesPass()(model)
    return count


def _find_operands(graph: ir.Graph, matrix: PackedMatrix) -> Iterator[ir.Node]:
    """The nodes whose output [K, N] the packed matrix takes the place of: they feed nothing but
    MatMuls."""
    value = graph.initializers.get(matrix.names[0])
    if value is None:
        return
    for node in _find_transposes(value):
        if len(matrix.names) == 1 and _feeds_products(node):
            yield node
        elif len(matrix.names) > 1:
            # Weights that are packed side by side are multiplied so, and nowhere else.
            (joining,) = node.outputs[0].consumers()
            assert joining.op_type == "Concat" and len(joining.inputs) == len(matrix.names)
            yield joining


def _find_transposes(value: ir.Value) -> Iterator[ir.Node]:
    """Those of a weight, behind casts."""
    for node in value.consumers():
        if node.op_type == "Cast":
            yield from _find_transposes(node.outputs[0])
        elif node.op_type == "Transpose":
            yield node


def _feeds_products(node: ir.Node) -> bool:
    return all(reader.op_type == "MatMul" for reader in node.outputs[0].consumers())


def _add_codes(graph: ir.Graph, name: str, matrix: PackedMatrix, folder: str) -> ir.Value:
    return _add_tensor(
        graph, f"{name}.codes", matrix.codes, _CODES[matrix.bits], matrix.shape, folder
    )


def _add_scales(
    graph: ir.Graph, name: str, stored: LazyTensor, dtype: str, folder: str
) -> ir.Value:
    return _add_tensor(graph, f"{name}.scales", stored, _SCALES[dtype], stored.shape, folder)


def _add_tensor(
    graph: ir.Graph,
    name: str,
    stored: LazyTensor,
    dtype: ir.DataType,
    shape: tuple[int, ...],
    folder: str,
) -> ir.Value:
    path = f"{folder}/{stored.file.name}"
    tensor = ir.ExternalTensor(
        path, stored.offset, stored.nbytes, dtype, shape=ir.Shape(shape), name=name
    )
    value = ir.Value(
        name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape), const_value=tensor
    )
    graph.register_initializer(value)
    return value
