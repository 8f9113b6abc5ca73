"""Rotary position embedding: the cosine and sine tables, as transformers computes them."""

import math

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.spec import Backbone, LinearRopeScaling, Llama3RopeScaling

__all__ = ["rotary_tables"]


def rotary_tables(
    backbone: Backbone, num_positions: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """cos and sin, each float32 [num_positions, head_dim / 2].

    Angles are float32 products, as the models saw them in training.
    """
    frequencies = _inverse_frequencies(backbone)
    positions = np.arange(num_positions, dtype=np.float32)
    angles = np.outer(positions, frequencies).astype(np.float32)
    return np.cos(angles), np.sin(angles)


def _inverse_frequencies(backbone: Backbone) -> NDArray[np.float32]:
    exponents = np.arange(0, backbone.head_dim, 2, dtype=np.float32) / backbone.head_dim
    bases = np.power(np.float32(backbone.rope_theta), exponents, dtype=np.float32)
    frequencies = (1.0 / bases).astype(np.float32)
    scaling = backbone.rope_scaling
    if isinstance(scaling, LinearRopeScaling):
        return (frequencies / np.float32(scaling.factor)).astype(np.float32)
    if isinstance(scaling, Llama3RopeScaling):
        return _scale_llama3(frequencies, scaling)
    return frequencies


def _scale_llama3(
    frequencies: NDArray[np.float32], scaling: Llama3RopeScaling
) -> NDArray[np.float32]:
    """Long waves slowed by `factor`, short ones kept, a smooth passage between (Llama 3.1)."""
    original = scaling.original_max_position_embeddings
    wavelengths = 2 * math.pi / frequencies
    smooth = (original / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    smooth = np.clip(smooth, 0.0, 1.0)
    scaled = (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
    return scaled.astype(np.float32)
