"""The attributes of a node, and bytes, as TensorRT hands them to plugins and stores them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quatrain.plugins.definition import (
    AttributeKind,
    AttributeValue,
    DefinitionFactory,
    UnsupportedError,
)

__all__ = ["KERNELS_FIELD", "declare_fields", "make_fields", "read_attributes", "read_bytes"]

KERNELS_FIELD = "kernels"
_TYPES: dict[AttributeKind, str] = {"int": "INT32", "float": "FLOAT32", "string": "CHAR"}


def declare_fields(trt: Any, factory: DefinitionFactory) -> Any:
    """What the parser should look for: the attributes of the operator."""
    kinds = factory.attributes.items()
    return trt.PluginFieldCollection(
        [
            trt.PluginField(name, np.array([]), getattr(trt.PluginFieldType, _TYPES[kind]))
            for name, (kind, _) in kinds
        ]
    )


def read_attributes(factory: DefinitionFactory, fields: Any) -> dict[str, AttributeValue]:
    """The attributes of a node; `UnsupportedError` where one is missing: TensorRT only warns."""
    arrays = {field.name: field.data for field in fields}
    values: dict[str, AttributeValue] = {}
    for name, (kind, default) in factory.attributes.items():
        data = arrays.get(name)
        if data is not None and np.size(data) > 0:
            values[name] = _read_value(kind, np.asarray(data))
        elif default is not None:
            values[name] = default
        else:
            raise UnsupportedError(f"the attribute {name} is missing")
    return values


def read_bytes(fields: Any) -> bytes:
    """The stored kernels; `UnsupportedError` if there are none."""
    for field in fields:
        if field.name == KERNELS_FIELD and field.data is not None:
            return bytes(np.asarray(field.data).tobytes())
    raise UnsupportedError("the engine has no kernels for it: build it again with quatrain")


def make_fields(
    trt: Any,
    factory: DefinitionFactory,
    attributes: Mapping[str, AttributeValue],
    kernels: bytes,
) -> tuple[Any, list[NDArray[np.generic]]]:
    """What is to be stored, and the arrays, which have to live as long: TensorRT only points."""
    arrays = {
        name: _make_array(kind, attributes[name]) for name, (kind, _) in factory.attributes.items()
    }
    types = {name: _TYPES[kind] for name, (kind, _) in factory.attributes.items()}
    arrays[KERNELS_FIELD] = np.frombuffer(kernels, np.int8)
    types[KERNELS_FIELD] = "INT8"
    fields = [
        trt.PluginField(name, array, getattr(trt.PluginFieldType, types[name]))
        for name, array in arrays.items()
    ]
    return trt.PluginFieldCollection(fields), list(arrays.values())


def _read_value(kind: AttributeKind, data: NDArray[Any]) -> AttributeValue:
    """An INT64 of the node arrives as INT32; a string is terminated by NUL."""
    if kind == "string":
        return data.tobytes().split(b"\0")[0].decode()
    return float(data.flat[0]) if kind == "float" else int(data.flat[0])


def _make_array(kind: AttributeKind, value: AttributeValue) -> NDArray[np.generic]:
    if kind == "string":
        return np.frombuffer(str(value).encode() + b"\0", np.int8)
    return np.array([value], np.float32 if kind == "float" else np.int32)
