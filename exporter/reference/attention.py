"""Grouped-query attention over whole sequences, with a mask and without a cache."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.reference.functions import rms_norm, softmax
from quatrain.exporter.reference.rotary import rotate
from quatrain.exporter.reference.rows import Rows, find_visible, list_positions
from quatrain.exporter.reference.weights import Weights
from quatrain.exporter.spec import Backbone, DecoderSpec

__all__ = ["Attention", "attend", "lay_out_cache"]

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Attention:
    """What is added to the residual stream, [B, R, H], and the rotated keys and the values
    [B, R, Hkv, D] that it was made with."""

    output: Floats
    keys: Floats
    values: Floats


def attend(
    weights: Weights, spec: DecoderSpec, layer: int, queried: Floats, read: Floats, rows: Rows
) -> Attention:
    """The attention of a layer: queries of `queried`, keys and values of `read`.

    Both are normed states [B, R, H], and the same except in a layer that mirrors another one.
    """
    backbone = spec.backbone
    prefix = f"model.layers.{layer}.self_attn"
    queries = _split(weights.project(f"{prefix}.q_proj", queried), backbone.num_attention_heads)
    keys = _split(weights.project(f"{prefix}.k_proj", read), backbone.num_key_value_heads)
    values = _split(weights.project(f"{prefix}.v_proj", read), backbone.num_key_value_heads)
    if backbone.qk_norm:
        epsilon = backbone.rms_norm_eps
        queries = rms_norm(queries, weights[f"{prefix}.q_norm.weight"], epsilon)
        keys = rms_norm(keys, weights[f"{prefix}.k_norm.weight"], epsilon)
    positions = list_positions(spec, layer, rows)
    queries, keys = (rotate(x, positions, backbone) for x in (queries, keys))
    mixed = _mix(backbone, queries, keys, values, find_visible(spec, layer, rows))
    return Attention(weights.project(f"{prefix}.o_proj", mixed), keys, values)


def lay_out_cache(x: Floats, num_streams: int) -> Floats:
    """Keys or values [B, R, Hkv, D] as a bundle's cache has them: [B, n * Hkv, R / n, D].

    `num_streams` is n for a layer whose streams do not see each other, whose heads are those of
    stream 0, then of stream 1 and so on; 1 for any other.
    """
    batch_size, num_rows, num_heads, head_dim = x.shape
    length = num_rows // num_streams
    apart = x.reshape(batch_size, length, num_streams, num_heads, head_dim)
    folded = apart.transpose(0, 2, 3, 1, 4)
    return folded.reshape(batch_size, num_streams * num_heads, length, head_dim)


def _split(x: Floats, num_heads: int) -> Floats:
    return x.reshape(*x.shape[:-1], num_heads, -1)


def _mix(
    backbone: Backbone,
    queries: Floats,
    keys: Floats,
    values: Floats,
    visible: NDArray[np.bool_],
) -> Floats:
    """The values that each row sees, weighed, [B, R, Hq * D]; one key head at a time."""
    batch_size, num_rows, num_heads, head_dim = queries.shape
    group = num_heads // backbone.num_key_value_heads
    scale = np.float32(head_dim**-0.5)
    mixed = np.empty_like(queries)
    for b in range(batch_size):
        mask = visible[b % len(visible)]
        for head in range(backbone.num_key_value_heads):
            mine = slice(head * group, (head + 1) * group)
            scores = queries[b, :, mine].transpose(1, 0, 2) @ keys[b, :, head].T * scale
            shares = softmax(np.where(mask, scores, np.float32(-np.inf)))
            mixed[b, :, mine] = (shares @ values[b, :, head]).transpose(1, 0, 2)
    return mixed.reshape(batch_size, num_rows, num_heads * head_dim)
