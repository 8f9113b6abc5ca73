"""More ways to break graphs: one at least for every axis of a decoder."""

from collections.abc import Callable

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper
from tests.exporter.comparison.mutations import Edit


def leave_a_layer_early(exit_number: int) -> Edit:
    """An exit reads the residual stream that its segment starts from: where that is one layer, the
    exit sits a layer too early."""

    def edit(proto: onnx.ModelProto) -> None:
        if any(t.name == f"early_norms.{exit_number}.weight" for t in proto.graph.initializer):
            for node in proto.graph.node:
                if node.op_type == "GatherND":
                    # In 16 bits, what "hidden" is rounded to.
                    stored = (n for n in proto.graph.node if "hidden" in n.input)
                    cast = next((n for n in stored if n.op_type == "Cast"), None)
                    node.input[0] = "hidden" if cast is None else cast.output[0]

    return edit


def swap_router_choices(exit_number: int) -> Edit:
    """Going on and leaving take each other's place."""

    def edit(proto: onnx.ModelProto) -> None:
        if any(t.name == f"early_norms.{exit_number}.weight" for t in proto.graph.initializer):
            swapped = numpy_helper.from_array(np.array([1, 0]), "swap.order")
            proto.graph.initializer.append(swapped)
            _follow(
                proto,
                "router_logprobs",
                lambda value, result: helper.make_node(
                    "Gather", [value, "swap.order"], [result], axis=2
                ),
            )

    return edit


def mix_heads(layer: int) -> Edit:
    """What attention gives, [B, rows, heads, D], is laid out as [B, rows, D, heads]."""

    def edit(proto: onnx.ModelProto) -> None:
        product = _find_product(proto, f"model.layers.{layer}.self_attn.o_proj.weight")
        made = {name: node for node in proto.graph.node for name in node.output}
        node = product
        while node is not None and node.op_type != "Transpose":
            node = made[node.input[0]]
        if node is not None:
            node.attribute[0].ints[:] = [0, 2, 3, 1]

    return edit


def transpose_head(layer: int) -> Edit:
    """Heads of keys are read [D, heads] where they are stored [heads, D]."""
    weight = f"model.layers.{layer}.self_attn.k_proj.weight"

    def edit(proto: onnx.ModelProto) -> None:
        product = _find_product(proto, weight)
        if product is None:
            return
        shape = next(n for n in proto.graph.node if product.output[0] in n.input)
        turn = next(n for n in proto.graph.node if shape.output[0] in n.input)
        sizes = next(t for t in proto.graph.initializer if t.name == shape.input[1])
        flipped = numpy_helper.to_array(sizes).copy()
        flipped[2:] = flipped[:1:-1]
        proto.graph.initializer.append(numpy_helper.from_array(flipped, "flipped.shape"))
        shape.input[1] = "flipped.shape"
        turn.attribute[0].ints[:] = [0, 3, 1, 2]

    return edit


def exchange_keys_and_values(layer: int, head: int, num_heads: int) -> Edit:
    """Of one head the values go where keys do, and the other way round."""

    def edit(proto: onnx.ModelProto) -> None:
        nodes = [
            n
            for kind in ("key", "value")
            for n in proto.graph.node
            if n.op_type == "TensorScatter" and n.input[0] == f"{kind}_cache.{layer}"
        ]
        if not nodes:
            return
        keys, values = nodes
        is_it = (np.arange(num_heads) == head).reshape(1, num_heads, 1, 1)
        proto.graph.initializer.append(numpy_helper.from_array(is_it, "exchange.head"))
        one, other = keys.input[1], values.input[1]
        place = list(proto.graph.node).index(keys)
        for node, first, second in ((keys, other, one), (values, one, other)):
            result = f"exchange.{node.output[0]}"
            node.input[1] = result
            proto.graph.node.insert(
                place, helper.make_node("Where", ["exchange.head", first, second], [result])
            )

    return edit


def use_norm_of_layer_before(layer: int) -> Edit:
    """The first norm of a layer multiplies with the weight of the layer before."""
    names = [f"model.layers.{at}.input_layernorm.weight" for at in (layer - 1, layer)]

    def edit(proto: onnx.ModelProto) -> None:
        for node in proto.graph.node:
            for index, name in enumerate(node.input):
                if name == names[1]:
                    node.input[index] = names[0]

    return edit


def mirror_another_layer(layer: int, source: int) -> Edit:
    """A layer that mirrors another one makes its keys of what `source` reads."""
    weight = f"model.layers.{layer}.self_attn.k_proj.weight"
    norm = f"model.layers.{source}.input_layernorm"

    def edit(proto: onnx.ModelProto) -> None:
        product = _find_product(proto, weight)
        assert product is not None
        norms = (n for n in proto.graph.node if n.op_type == "RMSNormalization")
        product.input[0] = next(n.output[0] for n in norms if norm in n.output[0])

    return edit


def widen_windows(by: int) -> Edit:
    """The mask of a window lets more keys through than it should, or fewer."""

    def edit(proto: onnx.ModelProto) -> None:
        made = {node.output[0]: node for node in proto.graph.node}
        stored = {tensor.name: tensor for tensor in proto.graph.initializer}
        for node in proto.graph.node:
            if node.op_type == "Greater":
                first = made[node.input[1]]
                assert first.op_type == "Sub"
                window = numpy_helper.to_array(stored[first.input[1]]) + by
                proto.graph.initializer.append(numpy_helper.from_array(window, "wrong.window"))
                first.input[1] = "wrong.window"

    return edit


def tell_another_window(by: int) -> Edit:
    """A kernel is told another window than the mask has."""

    def edit(proto: onnx.ModelProto) -> None:
        for node in proto.graph.node:
            for attribute in node.attribute:
                if attribute.name == "window" and attribute.i:
                    attribute.i += by

    return edit


def tell_later_positions(layer: int) -> Edit:
    """A kernel is told that rows stand one token further on than they do."""

    def edit(proto: onnx.ModelProto) -> None:
        for node in proto.graph.node:
            if node.op_type == "StreamFactorizedAttention" and f".{layer}." in node.output[0]:
                one = numpy_helper.from_array(np.array(1), "later.one")
                proto.graph.initializer.append(one)
                shifted = helper.make_node("Add", [node.input[3], "later.one"], ["later.rows"])
                node.input[3] = "later.rows"
                proto.graph.node.insert(list(proto.graph.node).index(node), shifted)
                return

    return edit


def keep_another_stream() -> Edit:
    """Where one stream is left, it is the one before the last."""

    def edit(proto: onnx.ModelProto) -> None:
        for node in proto.graph.node:
            for attribute in node.attribute:
                if node.op_type == "Constant" and attribute.name == "value_int":
                    attribute.i -= 1

    return edit


def forget_the_state() -> Edit:
    """A drafter gives the change of the state instead of the new state."""

    def edit(proto: onnx.ModelProto) -> None:
        casts = [n for n in proto.graph.node if n.op_type == "Cast"]
        states = {"state", *(n.output[0] for n in casts if "state" in n.input)}
        results = {"updated_state", *(n.input[0] for n in casts if "updated_state" in n.output)}
        for node in proto.graph.node:
            if node.op_type == "Add" and results.intersection(node.output):
                change = next(name for name in node.input if name not in states)
                node.CopyFrom(helper.make_node("Identity", [change], list(node.output)))

    return edit


def _find_product(proto: onnx.ModelProto, weight: str) -> NodeProto | None:
    """The MatMul with a stored matrix, which is cast and transposed on its way."""
    reached = {weight}
    for node in proto.graph.node:
        if reached.intersection(node.input):
            if node.op_type == "MatMul":
                return node
            reached.update(node.output)
    return None


def _follow(proto: onnx.ModelProto, value: str, make_node: Callable[[str, str], NodeProto]) -> None:
    """Put a node behind the one that makes a value, which then bears the value's name."""
    node = next(n for n in proto.graph.node if value in n.output)
    node.output[list(node.output).index(value)] = f"{value}.before"
    place = list(proto.graph.node).index(node)
    proto.graph.node.insert(place + 1, make_node(f"{value}.before", value))
