"""Hidden Decoding in plain torch: every row of every layer, one [nL, nL] mask a layer, no cache."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Shape:
    """What the weights do not say. `mirrors` is target -> source; `windows` counts what a layer
    attends over."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    num_streams: int
    intra: tuple[bool, ...]
    mirrors: Mapping[int, int]
    windows: tuple[int | None, ...]
    epsilon: float = 1e-5
    theta: float = 10000.0


def run_reference(
    weights: Weights,
    shape: Shape,
    input_ids: Tensor,
    feed_forwards: Sequence[Callable[[Tensor], Tensor]] | None = None,
) -> Tensor:
    """Ids int64 [B, L] to logits float32 [B, L, V] of each token's last row.

    `feed_forwards` has a layer's own way from normed rows to what is added; None: SwiGLU.
    """
    n = shape.num_streams
    tables = [weights["model.embed_tokens.weight"]]
    tables += [weights[f"model.scale_seq_embed_tokens_list.{s}.weight"] for s in range(n - 1)]
    x = torch.stack([table[input_ids] for table in tables], dim=2).flatten(1, 2)
    row = torch.arange(x.shape[1])
    normed: dict[int, Tensor] = {}
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        normed[layer] = normalize(x, weights[f"{prefix}.input_layernorm.weight"], shape.epsilon)
        source = normed[shape.mirrors.get(layer, layer)]
        x = x + attend(weights, f"{prefix}.self_attn", shape, layer, normed[layer], source, row)
        inner = normalize(x, weights[f"{prefix}.post_attention_layernorm.weight"], shape.epsilon)
        if feed_forwards is not None:
            x = x + feed_forwards[layer](inner)
            continue
        gate = functional.silu(linear(weights, f"{prefix}.mlp.gate_proj", inner))
        inner = gate * linear(weights, f"{prefix}.mlp.up_proj", inner)
        x = x + linear(weights, f"{prefix}.mlp.down_proj", inner)
    last = normalize(x, weights["model.norm.weight"], shape.epsilon)[:, n - 1 :: n]
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return last @ head.T


def attend(
    weights: Weights,
    prefix: str,
    shape: Shape,
    layer: int,
    own: Tensor,
    source: Tensor,
    row: Tensor,
) -> Tensor:
    token, stream = row // shape.num_streams, row % shape.num_streams
    position = token if shape.intra[layer] else row
    query = split(linear(weights, f"{prefix}.q_proj", own), shape.heads)
    key = split(linear(weights, f"{prefix}.k_proj", source), shape.kv_heads)
    value = split(linear(weights, f"{prefix}.v_proj", source), shape.kv_heads)
    if f"{prefix}.q_norm.weight" in weights:
        query = normalize(query, weights[f"{prefix}.q_norm.weight"], shape.epsilon)
        key = normalize(key, weights[f"{prefix}.k_norm.weight"], shape.epsilon)
    query, key = rotate(query, position, shape), rotate(key, position, shape)
    distance = position[:, None] - position[None, :]
    visible = row[:, None] >= row[None, :]
    if shape.intra[layer]:
        visible &= stream[:, None] == stream[None, :]
    window = shape.windows[layer]
    if window is not None:
        visible &= distance < window
    group = shape.heads // shape.kv_heads
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = query @ key.transpose(-1, -2) * shape.head_dim**-0.5
    mixed = scores.masked_fill(~visible, -torch.inf).softmax(-1) @ value
    return linear(weights, f"{prefix}.o_proj", mixed.transpose(1, 2).flatten(2))


def split(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def rotate(x: Tensor, position: Tensor, shape: Shape) -> Tensor:
    frequency = shape.theta ** -(torch.arange(0, shape.head_dim, 2) / shape.head_dim)
    angle = position[:, None] * frequency
    low, high = x.chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


def normalize(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, epsilon)


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    return functional.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))
