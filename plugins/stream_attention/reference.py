"""What `quatrain::StreamFactorizedAttention` computes, in NumPy."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["stream_factorized_attention"]

Array = NDArray[np.floating]


def stream_factorized_attention(
    query: Array,
    key_cache: Array,
    value_cache: Array,
    position_ids: NDArray[np.int64],
    *,
    scale: float,
    window: int = 0,
) -> NDArray[np.float32]:
    """Attention with the streams of a token folded into the heads, in float32.

    Rows of one token attend within their own stream only (Hidden Decoding, arXiv 2607.08186), so a
    stream is to attention what a head is: it never meets another. Stream s has the query heads
    s*Hq .. s*Hq + Hq-1 and the key/value heads s*Hkv .. s*Hkv + Hkv-1, which makes this
    grouped-query attention of n*Hq over n*Hkv heads.

    Args:
        query: [B, n*Hq, T, D], rotated.
        key_cache: [B, n*Hkv, C, D], rotated, the keys of these tokens included.
        value_cache: [B, n*Hkv, C, D].
        position_ids: [B, T], the token position of each query. It sees the positions up to its own.
        scale: Factor of the scores.
        window: How many positions a query sees, its own included; 0 for all before it.

    Returns:
        float32 [B, n*Hq, T, D].
    """
    batch, heads, tokens, head_dim = query.shape
    kv_heads, capacity = key_cache.shape[1:3]
    grouped = query.astype(np.float32).reshape(batch, kv_heads, -1, tokens, head_dim)
    scores = np.einsum("bhgtd,bhcd->bhgtc", grouped, key_cache.astype(np.float32)) * scale
    distance = position_ids[:, :, None] - np.arange(capacity)
    visible = (distance >= 0) & ((distance < window) if window else True)
    scores = np.where(visible[:, None, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    attended = np.einsum("bhgtc,bhcd->bhgtd", weights, value_cache.astype(np.float32))
    return attended.reshape(batch, heads, tokens, head_dim).astype(np.float32)
