"""Stream-factorized attention as its kernel sees it, which reads no mask.

In an engine the plugin goes by each row's position and by the window that the node bears; the
function body, which is what runs here, by the mask. Both must say the same. So that a comparison of
the graphs of engines is about what the plugin reads, the mask is made of that.
"""

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from quatrain.plugins.operator import DOMAIN
from quatrain.plugins.stream_attention.plugin import STREAM_FACTORIZED_ATTENTION

__all__ = ["tell_positions"]

_PARTS = ("shape", "length", "keys", "rows", "past", "behind", "near")


def tell_positions(proto: onnx.ModelProto) -> None:
    """Let every node of the operator read a mask that its positions and its window make."""
    nodes: list[NodeProto] = []
    for node in proto.graph.node:
        if (node.op_type, node.domain) == (STREAM_FACTORIZED_ATTENTION.name, DOMAIN):
            window = next((a.i for a in node.attribute if a.name == "window"), 0)
            name = f"{node.output[0]}.visible"
            nodes += _make_mask(name, node.input[3], node.input[4], window)
            node.input[4] = name
        nodes.append(node)
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(copies)


def _make_mask(name: str, positions: str, mask: str, window: int) -> list[NodeProto]:
    """bool [B, 1, T, L]: of L keys a query at position p sees those from p - window + 1 to p, or
    all up to p where the window is 0."""

    constants: dict[str, int | list[int]] = {
        "zero": 0,
        "one": 1,
        "first": [0],
        "axes": [1, 3],
    }
    if window:
        constants["window"] = window
    at = {part: f"{name}.{part}" for part in (*constants, *_PARTS)}
    make = helper.make_node
    nodes = [
        make("Constant", [], [at[part]], value=numpy_helper.from_array(np.array(value, np.int64)))
        for part, value in constants.items()
    ]
    nodes += [
        make("Shape", [mask], [at["shape"]], start=3, end=4),
        make("Squeeze", [at["shape"], at["first"]], [at["length"]]),
        make("Range", [at["zero"], at["length"], at["one"]], [at["keys"]]),
        make("Unsqueeze", [positions, at["axes"]], [at["rows"]]),
        make("LessOrEqual", [at["keys"], at["rows"]], [at["past"] if window else name]),
    ]
    if window:
        nodes += [
            make("Sub", [at["rows"], at["window"]], [at["behind"]]),
            make("Greater", [at["keys"], at["behind"]], [at["near"]]),
            make("And", [at["past"], at["near"]], [name]),
        ]
    return nodes
