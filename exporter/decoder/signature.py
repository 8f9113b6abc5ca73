"""What goes into and out of each graph: the one place that names its tensors."""

from collections.abc import Sequence

from quatrain.exporter.spec import Backbone
from quatrain.runtime.manifest import TensorInfo

__all__ = ["cache_inputs", "cache_outputs", "decoder_inputs", "rows_input", "states_input"]

ONNX_DTYPES = {
    "int64": "INT64",
    "bool": "BOOL",
    "float32": "FLOAT",
    "float16": "FLOAT16",
    "bfloat16": "BFLOAT16",
}


def decoder_inputs(first: TensorInfo) -> list[TensorInfo]:
    """The inputs of every graph with layers, `first` being token ids or hidden rows."""
    return [
        first,
        TensorInfo(name="position_ids", dtype="int64", shape=["batch", "rows"]),
        TensorInfo(name="attention_mask", dtype="bool", shape=["batch", 1, "rows", "length"]),
        TensorInfo(name="write_indices", dtype="int64", shape=["batch"]),
        TensorInfo(name="output_rows", dtype="int64", shape=["batch", "outputs"]),
    ]


def rows_input(backbone: Backbone, is_first: bool) -> TensorInfo:
    """Token ids for the graph with the embedding, hidden rows for the others.

    Whatever crosses the host is float32 (or an integer), so that NumPy can hold it.
    """
    if is_first:
        return TensorInfo(name="input_ids", dtype="int64", shape=["batch", "rows"])
    shape: list[int | str] = ["batch", "rows", backbone.hidden_size]
    return TensorInfo(name="hidden", dtype="float32", shape=shape)


def states_input(backbone: Backbone) -> TensorInfo:
    """The normed (and adapted) states that a head turns into logits."""
    shape: list[int | str] = ["batch", "outputs", backbone.hidden_size]
    return TensorInfo(name="exit_state", dtype="float32", shape=shape)


def cache_inputs(
    backbone: Backbone, layers: Sequence[int], dtype: str, capacity: int
) -> list[TensorInfo]:
    """Key and value caches of the layers, in the order of the graph's inputs."""
    shape: list[int | str] = ["batch", backbone.num_key_value_heads, capacity, backbone.head_dim]
    names = [f"{kind}_cache.{layer}" for layer in layers for kind in ("key", "value")]
    return [TensorInfo(name=name, dtype=dtype, shape=shape) for name in names]


def cache_outputs(inputs: Sequence[TensorInfo]) -> list[TensorInfo]:
    """The same caches after the call; each must be bound to its input's buffer."""
    return [
        TensorInfo(name=f"updated_{info.name}", dtype=info.dtype, shape=info.shape)
        for info in inputs
    ]
