"""The feed-forward weights of a bundle, where its graphs say they are."""

from pathlib import Path

import onnx

from quatrain.exporter.checkpoint.lazy_tensor import LazyTensor
from quatrain.exporter.checkpoint.names import feed_forward_name
from quatrain.runtime.errors import BundleError
from quatrain.runtime.manifest import Manifest

__all__ = ["FeedForwardWeights", "read_feed_forward_weights"]

FeedForwardWeights = dict[str, LazyTensor]
"""By part: gate_proj and up_proj [d_i, d], and of a predictor predictor.0 [r, d] and predictor.1
[d_i, r]."""

_DTYPES: dict[int, str] = {
    onnx.TensorProto.FLOAT: "F32",
    onnx.TensorProto.FLOAT16: "F16",
    onnx.TensorProto.BFLOAT16: "BF16",
}


def read_feed_forward_weights(
    bundle: Path, manifest: Manifest, layers: list[int]
) -> dict[int, FeedForwardWeights]:
    """Find the weights that choose the channels of these layers; no tensor data is read.

    Raises:
        BundleError: A graph does not refer to them.
    """
    stored = _list_stored(bundle, manifest)
    parts = ["gate_proj", "up_proj"]
    if manifest.spec["feed_forward"]["predictor_rank"] is not None:
        parts += ["predictor.0", "predictor.1"]
    weights: dict[int, FeedForwardWeights] = {}
    for layer in layers:
        names = {part: feed_forward_name(layer, part) for part in parts}
        missing = [name for name in names.values() if name not in stored]
        if missing:
            raise BundleError(
                f"the feed-forward weights of layer {layer} in {bundle}",
                f"no graph refers to a float tensor {missing[0]} in a file of the bundle",
                "export the checkpoint again with this version of quatrain",
            )
        weights[layer] = {part: stored[name] for part, name in names.items()}
    return weights


def _list_stored(bundle: Path, manifest: Manifest) -> dict[str, LazyTensor]:
    """Every float tensor that lies in a file of the bundle, by the name graphs have for it."""
    files = {record.path for record in manifest.files}
    stored = {}
    for graph in manifest.graphs:
        proto = onnx.load(bundle / graph.path, load_external_data=False)
        for tensor in proto.graph.initializer:
            place = {entry.key: entry.value for entry in tensor.external_data}
            if tensor.data_type in _DTYPES and place.get("location") in files:
                stored[tensor.name] = _locate(bundle, tensor, place)
    return stored


def _locate(bundle: Path, tensor: onnx.TensorProto, place: dict[str, str]) -> LazyTensor:
    return LazyTensor(
        name=tensor.name,
        file=bundle / place["location"],
        dtype=_DTYPES[tensor.data_type],
        shape=tuple(tensor.dims),
        offset=int(place.get("offset", 0)),
        nbytes=int(place["length"]),
        stored_name=tensor.name,
    )
