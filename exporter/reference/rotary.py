"""Rotary position embedding (arXiv 2104.09864), in halves as Llama and its kin have it."""

import math

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.spec import Backbone, LinearRopeScaling, Llama3RopeScaling

__all__ = ["rotate"]

Floats = NDArray[np.float32]


def rotate(x: Floats, positions: NDArray[np.int64], backbone: Backbone) -> Floats:
    """Turn heads x [B, R, heads, D] by the angles of their positions [R].

    Number i of the first half and number i of the second are a point, turned by the position times
    theta^(-2i / D). The product is one of float32, as the models had it in training.
    """
    angles = np.multiply.outer(positions.astype(np.float32), _list_frequencies(backbone))
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)


def _list_frequencies(backbone: Backbone) -> Floats:
    """Radians for each position, float32 [D / 2]."""
    half = backbone.head_dim // 2
    plain = [backbone.rope_theta ** (-i / half) for i in range(half)]
    scaling = backbone.rope_scaling
    if isinstance(scaling, LinearRopeScaling):
        plain = [frequency / scaling.factor for frequency in plain]
    elif isinstance(scaling, Llama3RopeScaling):
        plain = [_scale_llama3(frequency, scaling) for frequency in plain]
    return np.array(plain, np.float32)


def _scale_llama3(frequency: float, scaling: Llama3RopeScaling) -> float:
    """Llama 3.1's rule: a wave that turns fewer than `low_freq_factor` times in the original length
    is slowed by `factor`, one that turns more than `high_freq_factor` times is kept, and those in
    between are blended."""
    turns = scaling.original_max_position_embeddings * frequency / (2 * math.pi)
    if turns < scaling.low_freq_factor:
        return frequency / scaling.factor
    if turns > scaling.high_freq_factor:
        return frequency
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return kept * frequency + (1 - kept) * frequency / scaling.factor
