"""Makes one layer of a graph dense: all its channels run, behind the gate they have."""

from collections.abc import Callable

import onnx

from quatrain.exporter.checkpoint.names import feed_forward_name
from quatrain.exporter.errors import ExportError
from quatrain.plugins.bank_topk_ffn.body import BANK_TOPK_FEED_FORWARD
from quatrain.plugins.operator import DOMAIN

__all__ = ["edit_layer_dense"]


def edit_layer_dense(layer: int, bank_size: int) -> Callable[[onnx.ModelProto], None]:
    """An edit of graphs, for `probe_bundle`; it leaves those without this layer as they are.

    It computes what the graph of `quatrain export --dense-fallback` does, a little less fast.
    """

    def edit(proto: onnx.ModelProto) -> None:
        down = feed_forward_name(layer, "down_proj")
        node = _find_multiplier(proto.graph, down)
        if node is None:
            return
        if (node.domain, node.op_type) == (DOMAIN, BANK_TOPK_FEED_FORWARD.name):
            # All of a bank are its `bank_size` largest.
            next(a for a in node.attribute if a.name == "top_k").i = bank_size
            return
        # Without a predictor a Where zeroes what was not chosen, just before the last product.
        where = next((n for n in proto.graph.node if node.input[0] in n.output), None)
        if where is None or where.op_type != "Where":
            raise ExportError(
                f"make layer {layer} dense",
                f"{proto.graph.name} has no choice of channels that quatrain knows",
                "export the checkpoint again with this version of quatrain",
            )
        node.input[0] = where.input[1]

    return edit


def _find_multiplier(graph: onnx.GraphProto, weight: str) -> onnx.NodeProto | None:
    """The node that multiplies with a weight, which may be cast and transposed on its way."""
    value = weight
    while True:
        node = next((node for node in graph.node if value in node.input), None)
        if node is None or node.op_type not in ("Cast", "Transpose"):
            return node
        value = node.output[0]
