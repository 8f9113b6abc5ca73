"""How much a graph computes: it is run, and the shapes that met at each node are looked at."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir
import onnxruntime

from quatrain.exporter.decoder.graphs import build_graphs
from quatrain.exporter.spec import DecoderSpec


@dataclass(frozen=True)
class Work:
    """`rows`: for each weight multiplied with, the rows it met in one call. `attention_flops`: by
    layer, of the two products of attention, over the live length."""

    rows: Mapping[str, int]
    attention_flops: Mapping[int, int]


def measure_work(
    spec: DecoderSpec, tensors: Mapping[str, np.ndarray], tokens: int, *, skip_dead_rows: bool
) -> tuple[Work, np.ndarray]:
    """Prefill one prompt of `tokens` in a fresh cache; also the logits of its last token."""
    (built,) = build_graphs(
        spec, dict.fromkeys(tensors, "float32"), "float32", tokens, skip_dead_rows=skip_dead_rows
    )
    for name, value in built.model.graph.initializers.items():
        if value.const_value is None:
            value.const_value = ir.Tensor(tensors[name], name=name)
    model = onnx.inliner.inline_local_functions(ir.to_proto(built.model))
    watched = {
        f"{kind}:{index}": node
        for index, node in enumerate(model.graph.node)
        for kind in ("MatMul", "Attention")
        if node.op_type == kind
    }
    seen = {name for node in watched.values() for name in node.input[:2]}
    known = {value.name for value in model.graph.output}
    initializers = {tensor.name for tensor in model.graph.initializer}
    for name in sorted(seen - known - initializers):
        model.graph.output.append(onnx.ValueInfoProto(name=name))
    results = run(model, built.inputs, tokens)
    return Work(count_rows(model, results), count_flops(watched, results)), results["logits"]


def run(model: onnx.ModelProto, inputs: list, tokens: int) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    positions = np.arange(tokens)
    feeds: dict[str, np.ndarray] = {
        "input_ids": (positions * 7 % 40)[None],
        "position_ids": positions[None],
        "attention_mask": (positions[:, None] >= positions)[None, None],
        "write_indices": np.zeros(1, np.int64),
        "output_rows": np.array([[tokens - 1]]),
    }
    for info in inputs:
        if "cache" in info.name:
            feeds[info.name] = np.zeros([1, *info.shape[1:]], np.float32)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def count_rows(model: onnx.ModelProto, results: Mapping[str, np.ndarray]) -> dict[str, int]:
    makers = {name: node for node in model.graph.node for name in node.output}
    initializers = {tensor.name for tensor in model.graph.initializer}
    rows = {}
    for node in model.graph.node:
        if node.op_type != "MatMul":
            continue
        weight = node.input[1]
        while weight not in initializers:  # behind a Transpose, or a Cast
            weight = makers[weight].input[0]
        rows[weight] = int(np.prod(results[node.input[0]].shape[:-1]))
    return rows


def count_flops(
    watched: Mapping[str, onnx.NodeProto], results: Mapping[str, np.ndarray]
) -> dict[int, int]:
    attention = [node for name, node in watched.items() if name.startswith("Attention")]
    flops = {}
    for layer, node in enumerate(attention):
        query, key = (results[name].shape for name in node.input[:2])
        flops[layer] = 2 * 2 * query[1] * query[2] * key[2] * query[3]
    return flops
