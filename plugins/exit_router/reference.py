"""The definition of right for `quatrain::ExitRouter`, in plain NumPy."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import erf

import numpy as np
from numpy.typing import NDArray

__all__ = ["RouterBlock", "route_exit"]

Array = NDArray[np.float32]
_erf = np.vectorize(erf, otypes=[np.float64])


@dataclass(frozen=True, slots=True)
class RouterBlock:
    """One MLP block: fc1 [I, R] with bias [I], fc2 [R, I] with bias [R] (the first one's fc1 is
    [I, H])."""

    fc1_weight: Array
    fc1_bias: Array
    fc2_weight: Array
    fc2_bias: Array


def route_exit(
    hidden: Array,
    norm_weight: Array,
    blocks: Sequence[RouterBlock],
    router_norm_weight: Array,
    head_weight: Array,
    head_bias: Array,
    *,
    epsilon: float,
    temperature: float = 1.0,
) -> tuple[Array, Array]:
    """The exit's normed state [..., H] and the router's log-probabilities [..., 2].

    e = RMSNorm(hidden); r = fc2(GELU(fc1(r))) block by block, from e, without residuals;
    log_softmax(head(RMSNorm(r)) / temperature), index 0 continue, 1 exit.
    Source: N-vium (arXiv 2605.13190 and ETH-DISCO/n-vium, `Nvium_model.py`).
    """
    normed = _normalize(hidden, norm_weight, epsilon)
    state = normed
    for block in blocks:
        inner = _gelu(state @ block.fc1_weight.T + block.fc1_bias)
        state = inner @ block.fc2_weight.T + block.fc2_bias
    logits = _normalize(state, router_norm_weight, epsilon) @ head_weight.T + head_bias
    logits = logits / np.float32(temperature)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return normed, log_probs.astype(np.float32)


def _normalize(x: Array, weight: Array, epsilon: float) -> Array:
    x = x.astype(np.float32)
    scale = 1.0 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(epsilon))
    return np.asarray(x * scale * weight, dtype=np.float32)


def _gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1.0 + _erf(x / np.sqrt(2.0))), dtype=np.float32)
