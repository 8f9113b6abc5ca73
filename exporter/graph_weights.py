"""The weights of a graph in bytes: what it holds, what a step reads, what a sparse step leaves."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx

__all__ = ["GraphWeights", "weigh_graph"]

_CODE_BITS: dict[int, int] = {onnx.TensorProto.INT4: 4, onnx.TensorProto.INT8: 8}


@dataclass(frozen=True, slots=True)
class GraphWeights:
    """Bytes at one size of number, rotary tables and small constants left out.

    Args:
        held: All weights.
        read: Those that a call reads whole. Of a table that rows are looked up in it reads next to
            nothing, unless the table also makes the logits.
        feed_forward: Of those, the feed-forward networks', predictors included.
        dense: Of those, their three matrices: all that a dense decoder has.
        active: What one row needs of `feed_forward`: its active channels and the predictors.
    """

    held: int
    read: int
    feed_forward: int
    dense: int
    active: int


def weigh_graph(
    graph: onnx.GraphProto, banks: Mapping[str, Any] | None, item_bytes: int
) -> GraphWeights:
    """Add up the sizes of the tensors that lie outside of the graph's file; none is read.

    Args:
        banks: The spec's `feed_forward`; None where all channels always run.
        item_bytes: Bytes of a number on the device, where weights have the compute type.
    """
    read = _list_read_whole(graph)
    held = whole = feed_forward = dense = active = 0
    for tensor in graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        size = _count_bytes(tensor, item_bytes)
        held += size
        if tensor.name not in read:
            continue
        whole += size
        if ".mlp." in tensor.name:
            feed_forward += size
            dense += 0 if ".predictor." in tensor.name else size
            active += _count_active(tensor.name, size, banks)
    return GraphWeights(held, whole, feed_forward, dense, active)


def _count_bytes(tensor: onnx.TensorProto, item_bytes: int) -> int:
    """Codes have the bits that they have, whatever a number takes."""
    bits = _CODE_BITS.get(tensor.data_type, 8 * item_bytes)
    return int(math.prod(tensor.dims)) * bits // 8


def _count_active(name: str, size: int, banks: Mapping[str, Any] | None) -> int:
    if banks is None or banks["predictor_rank"] is None or ".predictor." in name:
        return size  # without a predictor, the choice takes the activations of all channels
    number = name.partition("layers.")[2].partition(".")[0]
    if number.isdigit() and int(number) in banks["dense_fallback_layers"]:
        return size
    return size * int(banks["top_k"]) // int(banks["bank_size"])


def _list_read_whole(graph: onnx.GraphProto) -> set[str]:
    """The tensors that some node reads whole: of others only rows are looked up."""
    looked_up = {"Gather": {0}, "RotaryEmbedding": {1, 2}}
    return {
        name
        for node in graph.node
        for place, name in enumerate(node.input)
        if place not in looked_up.get(node.op_type, ())
    }
