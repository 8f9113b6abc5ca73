"""What an ONNX file says that TensorRT's parser keeps to itself; no weights are read."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx

from quatrain.exporter.engine.network import Creator

__all__ = ["OnnxGraph", "PluginNode"]


@dataclass(frozen=True, slots=True)
class PluginNode:
    """A node that asks for a plugin (attribute `plugin_namespace`)."""

    name: str
    creator: Creator


@dataclass(frozen=True, slots=True)
class _ExternalData:
    """Where an initializer lies: a file relative to the graph's folder, and a range of bytes."""

    path: str
    offset: int
    length: int


class OnnxGraph:
    """An ONNX file, its external weights left where they are."""

    def __init__(self, path: Path) -> None:
        self._folder = path.parent
        self._model = onnx.load(path, load_external_data=False)
        self._is_changed = False
        self._functions = {(f.domain, f.name): f for f in self._model.functions}

    @property
    def weight_bytes(self) -> int:
        """The stored size of all initializers."""
        return sum(map(_count_bytes, self._model.graph.initializer))

    def find_missing_weights(self) -> list[str]:
        """The files of weights that are not there, or too short for what they should hold."""
        ends: dict[str, int] = {}
        for tensor in self._model.graph.initializer:
            data = _read_external(tensor)
            if data is not None:
                ends[data.path] = max(ends.get(data.path, 0), data.offset + data.length)
        return [name for name, end in ends.items() if _file_size(self._folder / name) < end]

    def find_readers(self, tensor: str) -> list[str]:
        """The nodes of the main graph that read a tensor, as "name (Operator)"."""
        return [
            f"{node.name or '(unnamed)'} ({node.op_type})"
            for node in self._model.graph.node
            if tensor in node.input
        ]

    def use_bodies(self, namespace: str, operator: str) -> None:
        """Ask for no plugin of that name any more, so that the function body is built."""
        for nodes in (self._model.graph.node, *(f.node for f in self._model.functions)):
            for node in _iter_nodes(nodes):
                plugin = _read_plugin(node)
                if plugin and plugin.creator.namespace == namespace and node.op_type == operator:
                    kept = [a for a in node.attribute if not a.name.startswith("plugin_")]
                    del node.attribute[:]
                    node.attribute.extend(kept)
                    self._is_changed = True

    def serialize_changed(self) -> bytes | None:
        """The model without its external weights, if it is not that of the file any more."""
        return self._model.SerializeToString() if self._is_changed else None

    def plugin_nodes(self, is_registered: Callable[[Creator], bool]) -> list[PluginNode]:
        """The nodes that ask for a plugin, also inside functions and branches.

        A function whose plugin is registered is replaced as a whole; what is in it does not count.
        """
        return list(self._walk(self._model.graph.node, is_registered))

    def _walk(
        self, nodes: Iterable[onnx.NodeProto], is_registered: Callable[[Creator], bool]
    ) -> Iterator[PluginNode]:
        for node in nodes:
            plugin = _read_plugin(node)
            if plugin is not None:
                yield plugin
                if is_registered(plugin.creator):
                    continue
            function = self._functions.get((node.domain, node.op_type))
            if function is not None:
                yield from self._walk(function.node, is_registered)
            for attribute in node.attribute:
                yield from self._walk(attribute.g.node, is_registered)


def _iter_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes, and those in their branches."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield from _iter_nodes(attribute.g.node)


def _read_plugin(node: onnx.NodeProto) -> PluginNode | None:
    texts = {a.name: a.s.decode() for a in node.attribute if a.type == onnx.AttributeProto.STRING}
    if "plugin_namespace" not in texts:
        return None
    # "1" is the parser's default, too.
    version = texts.get("plugin_version", "1")
    return PluginNode(node.name, Creator(node.op_type, version, texts["plugin_namespace"]))


def _read_external(tensor: onnx.TensorProto) -> _ExternalData | None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return None
    return _ExternalData(
        entries["location"], int(entries.get("offset", 0)), int(entries.get("length", 0))
    )


def _count_bytes(tensor: onnx.TensorProto) -> int:
    data = _read_external(tensor)
    return data.length if data else tensor.ByteSize()


def _file_size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1
