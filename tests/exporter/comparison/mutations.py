"""Ways to break a bundle's graphs, so that a comparison can be seen to notice.

`mutate(bundle, target, edit)` makes a copy of a bundle whose graphs went through `edit`; its
manifest speaks of the changed files, so that nothing but what they compute gives them away.
"""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from quatrain.exporter.bundle import record_file, write_file
from quatrain.runtime.manifest import MANIFEST_NAME, dump_manifest, load_manifest

Edit = Callable[[onnx.ModelProto], None]


def mutate(
    bundle: Path, target: Path, edit: Edit, variant: Literal["cpu", "engine"] = "cpu"
) -> Path:
    """Copy a bundle, edit its graphs of one variant; `AssertionError` if none of them changed."""
    shutil.copytree(bundle, target)
    manifest = load_manifest(target)
    paths = {g.path if variant == "cpu" else g.deployment.path for g in manifest.graphs}
    changed = False
    for path in paths:
        proto = onnx.load(target / path, load_external_data=False)
        before = proto.SerializeToString(deterministic=True)
        edit(proto)
        changed |= proto.SerializeToString(deterministic=True) != before
        write_file(target / path, proto.SerializeToString())
    assert changed, "the edit found nothing to change"
    records = [record_file(target, r.path) if r.path in paths else r for r in manifest.files]
    write_file(
        target / MANIFEST_NAME, dump_manifest(msgspec.structs.replace(manifest, files=records))
    )
    return target


def use_rope_base(theta: float) -> Edit:
    """Rotary tables of another base."""

    def edit(proto: onnx.ModelProto) -> None:
        for tensor in proto.graph.initializer:
            if tensor.name in ("rotary.cos", "rotary.sin"):
                positions, half = tensor.dims
                speeds = theta ** -(np.arange(half) / half)
                angles = np.arange(positions)[:, None] * speeds
                table = np.cos(angles) if tensor.name.endswith("cos") else np.sin(angles)
                tensor.CopyFrom(numpy_helper.from_array(table.astype(np.float32), tensor.name))

    return edit


def swap_gate_and_up(layer: int) -> Edit:
    """The two weights of a feed-forward network take each other's place."""
    names = [f"model.layers.{layer}.mlp.{part}_proj.weight" for part in ("gate", "up")]

    def edit(proto: onnx.ModelProto) -> None:
        for node in proto.graph.node:
            for index, name in enumerate(node.input):
                if name in names:
                    node.input[index] = names[1 - names.index(name)]

    return edit


def keep_stale_row(layer: int, position: int) -> Edit:
    """The keys of one position never reach the cache of a layer."""

    def edit(proto: onnx.ModelProto) -> None:
        node = _find(proto, "TensorScatter", f"key_cache.{layer}")
        if node is None:
            return
        _insert(
            proto,
            node,
            [
                _constant("stale.position", np.array(position)),
                _constant("stale.zero", np.zeros((), np.float32)),
                _constant("stale.axes", np.array([1, 3])),
                helper.make_node("Equal", ["position_ids", "stale.position"], ["stale.is_it"]),
                helper.make_node("Unsqueeze", ["stale.is_it", "stale.axes"], ["stale.mask"]),
                helper.make_node(
                    "Where", ["stale.mask", "stale.zero", node.input[1]], ["stale.keys"]
                ),
            ],
        )
        node.input[1] = "stale.keys"

    return edit


def shift_mask() -> Edit:
    """Every token sees one token more, its successor."""

    def edit(proto: onnx.ModelProto) -> None:
        readers = [n for n in proto.graph.node if "attention_mask" in n.input]
        if not readers:
            return
        _insert(
            proto,
            readers[0],
            [
                _constant("shift.zero", np.array([0])),
                _constant("shift.one", np.array([1])),
                _constant("shift.last", np.array([-1])),
                _constant("shift.axis", np.array([3])),
                helper.make_node(
                    "Slice",
                    ["attention_mask", "shift.zero", "shift.one", "shift.axis"],
                    ["shift.first"],
                ),
                helper.make_node(
                    "Slice",
                    ["attention_mask", "shift.zero", "shift.last", "shift.axis"],
                    ["shift.rest"],
                ),
                helper.make_node("Concat", ["shift.first", "shift.rest"], ["shift.mask"], axis=3),
            ],
        )
        for node in readers:
            if node.op_type == "Shape":
                continue
            for index, name in enumerate(node.input):
                if name == "attention_mask":
                    node.input[index] = "shift.mask"

    return edit


def choose_channels(top_k: int) -> Edit:
    """Another number of active channels in every bank."""

    def edit(proto: onnx.ModelProto) -> None:
        for node in proto.graph.node:
            for attribute in node.attribute:
                if attribute.name == "top_k":
                    attribute.i = top_k

    return edit


def reverse_streams() -> Edit:
    """A token's rows in the opposite order."""

    def edit(proto: onnx.ModelProto) -> None:
        node = next((n for n in proto.graph.node if n.op_type == "Concat"), None)
        if node is not None:
            names = list(node.input)
            del node.input[:]
            node.input.extend(reversed(names))

    return edit


def lose_numbers(value: str) -> Edit:
    """The square root of a value takes its place: NaN where that is negative."""

    def edit(proto: onnx.ModelProto) -> None:
        node = next((n for n in proto.graph.node if value in n.output), None)
        if node is None:
            return
        index = list(node.output).index(value)
        node.output[index] = f"{value}.before"
        place = list(proto.graph.node).index(node)
        root = helper.make_node("Sqrt", [f"{value}.before"], [value])
        proto.graph.node.insert(place + 1, root)

    return edit


def square_in_16_bits(layer: int, factor: float) -> Edit:
    """A norm written out in the compute type, of rows `factor` times as large: their squares are
    beyond what float16 holds, and the results would be as before."""
    weight = f"model.layers.{layer}.input_layernorm.weight"

    def edit(proto: onnx.ModelProto) -> None:
        # The weight itself, or where it is stored in 16 bits, a cast of it.
        scales = {weight, *(n.output[0] for n in proto.graph.node if weight in n.input)}
        norms = [n for n in proto.graph.node if n.op_type == "RMSNormalization"]
        norm = next((n for n in norms if n.input[1] in scales), None)
        if norm is None:
            return
        cast = next(n for n in proto.graph.node if norm.input[0] in n.output)
        last = next(n for n in proto.graph.node if norm.output[0] in n.input)
        dtype = next(a.i for a in last.attribute if a.name == "to")
        nodes = [
            _constant("squares.factor32", np.array(factor, np.float32)),
            _constant("squares.axis", np.array([-1])),
            helper.make_node("Cast", ["squares.factor32"], ["squares.factor"], to=dtype),
            helper.make_node("Mul", [cast.input[0], "squares.factor"], ["squares.rows"]),
            helper.make_node("Mul", ["squares.rows", "squares.rows"], ["squares.all"]),
            helper.make_node("ReduceMean", ["squares.all", "squares.axis"], ["squares.mean"]),
            helper.make_node("Sqrt", ["squares.mean"], ["squares.root"]),
            helper.make_node("Div", ["squares.rows", "squares.root"], ["squares.normed"]),
            helper.make_node("Cast", ["squares.normed"], ["squares.wide"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["squares.wide", norm.input[1]], [norm.output[0]]),
        ]
        _insert(proto, norm, nodes)
        proto.graph.node.remove(norm)

    return edit


def _find(proto: onnx.ModelProto, op_type: str, value: str) -> NodeProto | None:
    nodes = (n for n in proto.graph.node if n.op_type == op_type and value in n.input)
    return next(nodes, None)


def _insert(proto: onnx.ModelProto, before: NodeProto, nodes: Iterable[NodeProto]) -> None:
    place = list(proto.graph.node).index(before)
    for offset, node in enumerate(nodes):
        proto.graph.node.insert(place + offset, node)


def _constant(name: str, array: np.ndarray) -> NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))
