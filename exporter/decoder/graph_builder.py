"""onnxscript's graph builder, which does not work out again what an equal node told it before."""

from collections.abc import Hashable, Sequence
from typing import Any

import onnx
import onnx_ir as ir
from onnxscript import GraphBuilder

__all__ = ["RememberingGraphBuilder"]

# onnx infers with the values of constants that are no larger, and the shapes alone of others.
_MAX_CONSTANT_SIZE = 20
_ERROR = "pkg.onnxscript.shape_inference_error"
_PLAIN_ATTRIBUTES = {
    ir.AttributeType.INT,
    ir.AttributeType.FLOAT,
    ir.AttributeType.STRING,
    ir.AttributeType.INTS,
    ir.AttributeType.FLOATS,
    ir.AttributeType.STRINGS,
}

# An output's element type and shape, as far as they are known.
_Known = tuple[ir.DataType | None, ir.Shape | None]


class RememberingGraphBuilder(GraphBuilder):
    """Builds the graph that `GraphBuilder` builds.

    Layer after layer a decoder has the same nodes on the same types, and more than half of the time
    of building it went into reading an operator's schema and inferring its outputs anew for each.
    What is overridden are the hooks that `BuilderBase` has for it. Were they gone in a later
    onnxscript, graphs would be the same, and slower to build.
    """

    def __init__(self, graph: ir.Graph) -> None:
        super().__init__(graph)
        self._sorted: set[Hashable] = set()
        self._inferred: dict[Hashable, list[_Known]] = {}

    def _partition_inputs_attributes(
        self, schema: onnx.defs.OpSchema | None, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """Which arguments are inputs; as a rule, those without a keyword."""
        if schema is None:
            return args, kwargs
        key = (schema.domain, schema.name, schema.since_version, len(args), *kwargs)
        if key in self._sorted:
            return args, kwargs
        inputs, attributes = super()._partition_inputs_attributes(schema, args, kwargs)
        if _is_same(args, inputs) and list(attributes) == list(kwargs):
            self._sorted.add(key)
        return inputs, attributes

    def _cast_attributes(
        self, schema: onnx.defs.OpSchema | None, attributes: dict[str, Any]
    ) -> dict[str, Any]:
        """Say of lists of integers what they are, which to find out takes a while."""
        cast: dict[str, Any] = super()._cast_attributes(schema, attributes)
        return {n: ir.AttrInt64s(n, v) if _is_integers(v) else v for n, v in cast.items()}

    def _infer_shapes(self, node: ir.Node) -> None:
        key = _make_key(node)
        if key is None:
            super()._infer_shapes(node)
            return
        known = self._inferred.get(key)
        if known is None:
            super()._infer_shapes(node)
            if _ERROR not in node.metadata_props and all(map(_is_plain, node.outputs)):
                self._inferred[key] = [(o.dtype, _copy(o.shape)) for o in node.outputs]
            return
        for output, (dtype, shape) in zip(node.outputs, known, strict=True):
            output.type = None if dtype is None else ir.TensorType(dtype)
            output.shape = _copy(shape)


def _is_same(args: Sequence[Any], inputs: Sequence[Any]) -> bool:
    return len(args) == len(inputs) and all(a is b for a, b in zip(args, inputs, strict=True))


def _is_integers(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def _is_plain(value: ir.Value) -> bool:
    return value.type is None or type(value.type) is ir.TensorType


def _copy(shape: ir.Shape | None) -> ir.Shape | None:
    return None if shape is None else shape.copy()


def _make_key(node: ir.Node) -> Hashable | None:
    """All that types and shapes of the outputs follow from; None if it is out of the ordinary."""
    attributes = [_make_attribute_key(attribute) for attribute in node.attributes.values()]
    inputs = [_make_value_key(value) for value in node.inputs]
    is_fresh = all(output.type is None and output.shape is None for output in node.outputs)
    if None in attributes or None in inputs or not is_fresh:
        return None
    operator = (node.domain, node.op_type, node.overload, node.version, len(node.outputs))
    return operator, tuple(attributes), tuple(inputs)


def _make_attribute_key(attribute: ir.Attr) -> Hashable | None:
    if attribute.type not in _PLAIN_ATTRIBUTES or attribute.ref_attr_name is not None:
        return None
    # Without the type, 1 and 1.0 would be one.
    return attribute.name, attribute.type, attribute.value


def _make_value_key(value: ir.Value | None) -> Hashable | None:
    if value is None:
        return ()
    if type(value.type) is not ir.TensorType:
        return None
    dims = None if value.shape is None else value.shape.dims
    constant = value.const_value
    if constant is None or constant.size > _MAX_CONSTANT_SIZE:
        return value.type.dtype, dims
    if constant.dtype == ir.DataType.STRING:
        return None
    return value.type.dtype, dims, constant.dtype, tuple(constant.shape), constant.tobytes()
