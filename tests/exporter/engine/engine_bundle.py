"""A bundle with one small decoder of the signature graphs have, made with plain ONNX helpers."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from quatrain.runtime.manifest import (
    MANIFEST_NAME,
    SCHEMA_VERSION,
    CacheLayer,
    CacheLayout,
    FileRecord,
    Graph,
    GraphVariant,
    Limits,
    Manifest,
    TensorInfo,
    Versions,
    dump_manifest,
)

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, VOCAB, CAPACITY = 32, 4, 2, 16, 64, 48
ELEMENT_TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
DTYPE_NAMES = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.INT64: "int64",
    TensorProto.BOOL: "bool",
}


class TinyDecoder:
    """Collects the nodes and weights of a decoder; override a method to spoil it."""

    def __init__(self, dtype: str = "float16", num_layers: int = 2) -> None:
        self.dtype = dtype
        self.num_layers = num_layers
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.functions: list[onnx.FunctionProto] = []
        self.extra_inputs: list[onnx.ValueInfoProto] = []
        self._rng = np.random.default_rng(0)

    def make_model(self) -> onnx.ModelProto:
        self.add_body()
        opsets = [helper.make_opsetid("", 24)]
        opsets += [helper.make_opsetid(domain, 1) for domain in {f.domain for f in self.functions}]
        graph = helper.make_graph(
            self.nodes, "decoder", self.inputs(), self.outputs(), self.weights
        )
        return helper.make_model(
            graph, opset_imports=opsets, functions=self.functions, ir_version=11
        )

    def inputs(self) -> list[onnx.ValueInfoProto]:
        int64, info = TensorProto.INT64, helper.make_tensor_value_info
        return [
            info("input_ids", int64, ["batch", "rows"]),
            info("position_ids", int64, ["batch", "rows"]),
            info("attention_mask", TensorProto.BOOL, ["batch", 1, "rows", "length"]),
            info("write_indices", int64, ["batch"]),
            info("output_rows", int64, ["batch", "outputs"]),
            *self.extra_inputs,
            *self._caches(""),
        ]

    def outputs(self) -> list[onnx.ValueInfoProto]:
        shape = ["batch", "outputs", VOCAB]
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)
        return [logits, *self._caches("updated_")]

    def add_body(self) -> None:
        angles = np.outer(np.arange(CAPACITY), 1e4 ** -(np.arange(0, HEAD_DIM, 2) / HEAD_DIM))
        self.add_weight("cos", np.cos(angles))
        self.add_weight("sin", np.sin(angles))
        self.add_node("Shape", ["attention_mask"], "live", start=3, end=4)
        x = self.add_node("Gather", [self.random("embed", VOCAB, HIDDEN), "input_ids"], "embedded")
        for layer in range(self.num_layers):
            x = self.add_layer(x, layer)
        rows = self.add_node("Unsqueeze", ["output_rows", self.ints("two", [2])], "rows")
        x = self.add_node("GatherND", [x, rows], "picked", batch_dims=1)
        logits = self.add_node("MatMul", [x, self.random("head", HIDDEN, VOCAB)], "head_out")
        self.add_node("Cast", [logits], "logits", to=TensorProto.FLOAT)

    def add_layer(self, x: str, layer: int) -> str:
        name = f"layers.{layer}"
        queries = self.add_rope(self.add_heads(x, f"{name}.q", HEADS))
        keys = self.add_cache("key", layer, self.add_rope(self.add_heads(x, f"{name}.k", KV_HEADS)))
        values = self.add_cache("value", layer, self.add_heads(x, f"{name}.v", KV_HEADS))
        mixed = self.add_attention([queries, keys, values, "attention_mask"], f"{name}.attention")
        rows = self.add_node("Transpose", [mixed], f"{name}.rows", perm=[0, 2, 1, 3])
        flat = self.ints(f"{name}.flat_shape", [0, 0, HEADS * HEAD_DIM])
        flat = self.add_node("Reshape", [rows, flat], f"{name}.flat")
        weight = self.random(f"{name}.o", HEADS * HEAD_DIM, HIDDEN)
        out = self.add_node("MatMul", [flat, weight], f"{name}.out")
        return self.add_node("Add", [x, out], f"{name}.x")

    def add_attention(self, inputs: Sequence[str], output: str) -> str:
        return self.add_node("Attention", inputs, output)

    def add_cache(self, kind: str, layer: int, update: str) -> str:
        cache = f"{kind}_cache.{layer}"
        self.update_cache(cache, update)
        bounds = [self.ints(f"{cache}.zero", [0]), "live", self.ints(f"{cache}.axis", [2])]
        return self.add_node("Slice", [f"updated_{cache}", *bounds], f"{cache}.live")

    def update_cache(self, cache: str, update: str) -> None:
        inputs = [cache, update, "write_indices"]
        self.add_node("TensorScatter", inputs, f"updated_{cache}", axis=-2)

    def add_heads(self, x: str, name: str, heads: int) -> str:
        weight = self.random(f"{name}.weight", HIDDEN, heads * HEAD_DIM)
        flat = self.add_node("MatMul", [x, weight], f"{name}.flat")
        shape = self.ints(f"{name}.shape", [0, 0, heads, HEAD_DIM])
        split = self.add_node("Reshape", [flat, shape], f"{name}.split")
        return self.add_node("Transpose", [split], name, perm=[0, 2, 1, 3])

    def add_rope(self, heads: str) -> str:
        inputs = [heads, "cos", "sin", "position_ids"]
        return self.add_node("RotaryEmbedding", inputs, f"{heads}.rope")

    def add_node(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        name = f"node_{output}"
        self.nodes.append(helper.make_node(op, inputs, [output], name=name, **attributes))
        return output

    def add_weight(self, name: str, values: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(values.astype(self.dtype), name))
        return name

    def random(self, name: str, *shape: int) -> str:
        return self.add_weight(name, self._rng.standard_normal(shape) / np.sqrt(shape[0]))

    def ints(self, name: str, values: list[int]) -> str:
        self.weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def _caches(self, prefix: str) -> list[onnx.ValueInfoProto]:
        shape = ["batch", KV_HEADS, CAPACITY, HEAD_DIM]
        return [
            helper.make_tensor_value_info(
                f"{prefix}{kind}_cache.{layer}", ELEMENT_TYPES[self.dtype], shape
            )
            for layer in range(self.num_layers)
            for kind in ("key", "value")
        ]


def write_bundle(folder: Path, decoder: TinyDecoder | None = None) -> Path:
    """Write a bundle whose only graph is `decoder`, its weights in a file of their own."""
    decoder = decoder or TinyDecoder()
    folder.mkdir(parents=True)
    model = decoder.make_model()
    path = f"decoder.{decoder.dtype}.onnx"
    onnx.save(model, folder / path, save_as_external_data=True, location="weights.bin")
    variant = GraphVariant(
        path=path,
        dtype=decoder.dtype,
        inputs=[_describe(info) for info in model.graph.input],
        outputs=[_describe(info) for info in model.graph.output],
    )
    graph = Graph(
        name="decoder",
        role="decoder",
        path=path,
        dtype=decoder.dtype,
        inputs=variant.inputs,
        outputs=variant.outputs,
        deployment=variant,
    )
    (folder / MANIFEST_NAME).write_bytes(dump_manifest(_make_manifest(folder, decoder, graph)))
    return folder


def _make_manifest(folder: Path, decoder: TinyDecoder, graph: Graph) -> Manifest:
    layers = [
        CacheLayer(layer=layer, graph="decoder", num_heads=KV_HEADS, head_dim=HEAD_DIM)
        for layer in range(decoder.num_layers)
    ]
    return Manifest(
        schema_version=SCHEMA_VERSION,
        family="dense",
        spec={},
        vocab_size=VOCAB,
        stored_dtype=decoder.dtype,
        deployment_dtype=decoder.dtype,
        limits=Limits(max_seq_len=CAPACITY - 16, max_batch=2, prefill_chunk=16, max_deferred=4),
        cache=CacheLayout(capacity=CAPACITY, layers=layers),
        graphs=[graph],
        eos_token_ids=[0],
        files=[_record(folder, name) for name in (graph.path, "weights.bin")],
        versions=Versions(quatrain="0", onnx=onnx.__version__, onnxruntime="0"),
    )


def _describe(info: onnx.ValueInfoProto) -> TensorInfo:
    tensor = info.type.tensor_type
    shape: list[int | str] = [dim.dim_param or dim.dim_value for dim in tensor.shape.dim]
    return TensorInfo(name=info.name, dtype=DTYPE_NAMES[tensor.elem_type], shape=shape)


def _record(folder: Path, name: str) -> FileRecord:
    data = (folder / name).read_bytes()
    return FileRecord(path=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
