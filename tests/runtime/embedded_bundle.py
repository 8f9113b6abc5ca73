"""A bundle whose embedding tables stay on the host, made with plain ONNX helpers.

Its graph shows what it was given: the logits of a token are its rows as they came in, and keys and
values are these rows, one position each.
"""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from quatrain.runtime.manifest import (
    MANIFEST_NAME,
    SCHEMA_VERSION,
    CacheLayer,
    CacheLayout,
    FileRecord,
    Graph,
    GraphVariant,
    HostEmbeddings,
    Limits,
    Manifest,
    StoredTable,
    TensorInfo,
    Versions,
    dump_manifest,
)

NUM_ROWS, HIDDEN, CAPACITY, MAX_SEQ_LEN = 3, 4, 40, 37
VOCAB = NUM_ROWS * HIDDEN  # logits are rows
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
ELEMENT_TYPES = {
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
    "float32": TensorProto.FLOAT,
}
CACHE_SHAPE: list[int | str] = ["batch", 1, CAPACITY * NUM_ROWS, HIDDEN]
INPUTS = [
    TensorInfo(name="inputs_embeds", dtype="float32", shape=["batch", "rows", VOCAB]),
    TensorInfo(name="position_ids", dtype="int64", shape=["batch", "rows"]),
    TensorInfo(name="attention_mask", dtype="bool", shape=["batch", 1, "rows", "length"]),
    TensorInfo(name="write_indices", dtype="int64", shape=["batch"]),
    TensorInfo(name="output_rows", dtype="int64", shape=["batch", "outputs"]),
    TensorInfo(name="key_cache.0", dtype="float32", shape=CACHE_SHAPE),
    TensorInfo(name="value_cache.0", dtype="float32", shape=CACHE_SHAPE),
]
OUTPUTS = [
    TensorInfo(name="logits", dtype="float32", shape=["batch", "outputs", VOCAB]),
    TensorInfo(name="updated_key_cache.0", dtype="float32", shape=CACHE_SHAPE),
    TensorInfo(name="updated_value_cache.0", dtype="float32", shape=CACHE_SHAPE),
]


def write_bundle(folder: Path, dtype: str = "float32") -> NDArray[np.float32]:
    """Write it; what a lookup has to give: float32 [VOCAB, NUM_ROWS * HIDDEN]."""
    folder.mkdir()
    rng = np.random.default_rng(7)
    shape = (VOCAB, HIDDEN)
    tables = [rng.normal(size=shape).astype(DTYPES[dtype]) for _ in range(NUM_ROWS)]
    # Two tables in a file, one in another; 3 puts all of them at odd addresses.
    stored = [*_write_tables(folder / "a.safetensors", tables[:2], dtype, 3)]
    stored += _write_tables(folder / "b.safetensors", tables[2:], dtype, 3)
    onnx.save(_make_model(), folder / "decoder.onnx")
    graph = Graph(
        name="decoder",
        role="decoder",
        path="decoder.onnx",
        dtype="float32",
        inputs=INPUTS,
        outputs=OUTPUTS,
        deployment=GraphVariant(
            path="decoder.onnx", dtype="float32", inputs=INPUTS, outputs=OUTPUTS
        ),
    )
    names = ("a.safetensors", "b.safetensors", "decoder.onnx")
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        family="hidden_decoding",
        spec={},
        vocab_size=VOCAB,
        stored_dtype=dtype,
        deployment_dtype="float32",
        limits=Limits(max_seq_len=MAX_SEQ_LEN, max_batch=4, prefill_chunk=16, max_deferred=1),
        cache=CacheLayout(
            capacity=CAPACITY,
            layers=[
                CacheLayer(layer=0, graph="decoder", num_heads=1, head_dim=HIDDEN, unit="rows")
            ],
            rows_per_token=NUM_ROWS,
        ),
        graphs=[graph],
        eos_token_ids=[],
        files=[FileRecord(path=name, bytes=(folder / name).stat().st_size) for name in names],
        versions=Versions(quatrain="0", onnx="0", onnxruntime="0"),
        embeddings=HostEmbeddings(tables=stored),
    )
    (folder / MANIFEST_NAME).write_bytes(dump_manifest(manifest))
    return np.concatenate([table.astype(np.float32) for table in tables], axis=1)


def _write_tables(
    path: Path, tables: list[np.ndarray], dtype: str, padding: int
) -> list[StoredTable]:
    """Tables one after the other, behind a header of an odd length."""
    header = json.dumps({"__metadata__": {"padding": " " * padding}}).encode()
    data = len(header).to_bytes(8, "little") + header
    data += bytes(1 - len(data) % 2)
    stored = []
    for table in tables:
        shape = list(table.shape)
        stored.append(StoredTable(path=path.name, offset=len(data), dtype=dtype, shape=shape))
        data += table.tobytes()
    path.write_bytes(data)
    return stored


def _make_model() -> onnx.ModelProto:
    ints = {"to_rows": [0, 1, -1, HIDDEN], "two": [2], "num_rows": [NUM_ROWS]}
    weights = [numpy_helper.from_array(np.array(v, np.int64), name) for name, v in ints.items()]
    nodes = [
        helper.make_node("Unsqueeze", ["output_rows", "two"], ["wanted"]),
        helper.make_node("GatherND", ["inputs_embeds", "wanted"], ["logits"], batch_dims=1),
        helper.make_node("Reshape", ["inputs_embeds", "to_rows"], ["rows_of_tokens"]),
        helper.make_node("Mul", ["write_indices", "num_rows"], ["first_rows"]),
    ]
    for cache in ("key_cache.0", "value_cache.0"):
        inputs = [cache, "rows_of_tokens", "first_rows"]
        nodes.append(helper.make_node("TensorScatter", inputs, [f"updated_{cache}"], axis=-2))
    inputs, outputs = (
        [helper.make_tensor_value_info(i.name, ELEMENT_TYPES[i.dtype], i.shape) for i in infos]
        for infos in (INPUTS, OUTPUTS)
    )
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 24)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11)
