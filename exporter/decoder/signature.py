"""What goes into and out of each graph: the one place that names its tensors."""

from collections.abc import Mapping, Sequence
from typing import Literal

from quatrain.exporter.decoder.cache_plan import LayerCache
from quatrain.exporter.spec import Backbone, DecoderSpec
from quatrain.runtime.manifest import TensorInfo

__all__ = [
    "ONNX_DTYPES",
    "Embeddings",
    "cache_inputs",
    "cache_outputs",
    "decoder_inputs",
    "drafter_inputs",
    "rows_input",
    "states_input",
]

ONNX_DTYPES = {
    "int64": "INT64",
    "bool": "BOOL",
    "float32": "FLOAT",
    "float16": "FLOAT16",
    "bfloat16": "BFLOAT16",
}


Embeddings = Literal["graph", "host"]
"""Where the embedding tables are: in the first graph, or on the host, which looks rows up."""


def decoder_inputs(first: TensorInfo) -> list[TensorInfo]:
    """The inputs of every graph with layers but the caches, `first` being what it computes on.

    All of them speak of tokens, also where a token is several rows.
    """
    return [
        first,
        TensorInfo(name="position_ids", dtype="int64", shape=["batch", "rows"]),
        TensorInfo(name="attention_mask", dtype="bool", shape=["batch", 1, "rows", "length"]),
        TensorInfo(name="write_indices", dtype="int64", shape=["batch"]),
        TensorInfo(name="output_rows", dtype="int64", shape=["batch", "outputs"]),
    ]


def rows_input(spec: DecoderSpec, is_first: bool, embeddings: Embeddings) -> TensorInfo:
    """Token ids, or what the host looked up for them, for the first graph; hidden rows for others.

    Whatever crosses the host is float32 (or an integer), so that NumPy can hold it.
    """
    if is_first and embeddings == "graph":
        return TensorInfo(name="input_ids", dtype="int64", shape=["batch", "rows"])
    hidden_size = spec.backbone.hidden_size
    name, width = "hidden", hidden_size
    if is_first:
        name, width = "inputs_embeds", spec.num_streams * hidden_size
    return TensorInfo(name=name, dtype="float32", shape=["batch", "rows", width])


def states_input(backbone: Backbone) -> TensorInfo:
    """The normed (and adapted) states that a head turns into logits."""
    shape: list[int | str] = ["batch", "outputs", backbone.hidden_size]
    return TensorInfo(name="exit_state", dtype="float32", shape=shape)


def drafter_inputs(spec: DecoderSpec, embeddings: Embeddings) -> list[TensorInfo]:
    """A state and the token that follows it, for each row of the batch."""
    hidden_size = spec.backbone.hidden_size
    token = TensorInfo(name="input_ids", dtype="int64", shape=["batch"])
    if embeddings == "host":
        token = TensorInfo(name="inputs_embeds", dtype="float32", shape=["batch", hidden_size])
    return [TensorInfo(name="state", dtype="float32", shape=["batch", hidden_size]), token]


def cache_inputs(
    caches: Mapping[int, LayerCache], dtype: str, capacity: int | None
) -> list[TensorInfo]:
    """Key and value caches of the layers, in the order of the graph's inputs.

    `capacity` counts tokens; None stands for caches that are as long as the mask of each call.
    """
    return [
        TensorInfo(
            name=f"{kind}_cache.{layer}",
            dtype=dtype,
            shape=["batch", cache.num_heads, _count_positions(cache, capacity), cache.head_dim],
        )
        for layer, cache in caches.items()
        for kind in ("key", "value")
    ]


def _count_positions(cache: LayerCache, capacity: int | None) -> int | str:
    if capacity is not None:
        return cache.positions(capacity)
    return "length" if cache.unit == "tokens" else "row_length"


def cache_outputs(inputs: Sequence[TensorInfo]) -> list[TensorInfo]:
    """The same caches after the call; each must be bound to its input's buffer."""
    return [
        TensorInfo(name=f"updated_{info.name}", dtype=info.dtype, shape=info.shape)
        for info in inputs
    ]
