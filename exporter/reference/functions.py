"""The functions of float32 arrays that a decoder is made of, in float32."""

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["gelu", "log_softmax", "multiply", "rms_norm", "sigmoid", "silu", "softmax"]

Floats = NDArray[np.float32]

_erf = np.frompyfunc(math.erf, 1, 1)


def multiply(x: Floats, matrix: Floats) -> Floats:
    """x [.., in] times the transposed matrix [out, in]: [.., out]. All rows are one product, which
    takes a fraction of what one for each sequence does."""
    rows = x.reshape(-1, x.shape[-1]) @ matrix.T
    return rows.reshape(*x.shape[:-1], len(matrix))


def rms_norm(x: Floats, weight: Floats, epsilon: float) -> Floats:
    """weight * x / sqrt(mean(x^2) + epsilon), over the last axis."""
    mean_square: Floats = (x * x).mean(axis=-1, keepdims=True)
    result: Floats = x / np.sqrt(mean_square + np.float32(epsilon)) * weight
    return result


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + e^-x), without an overflow on either side."""
    shrunk = np.exp(-np.abs(x))
    result: Floats = np.where(x < 0, shrunk, np.float32(1)) / (1 + shrunk)
    return result


def silu(x: Floats) -> Floats:
    """x * sigmoid(x)."""
    return x * sigmoid(x)


def gelu(x: Floats) -> Floats:
    """x * Phi(x) with the exact distribution function of the normal distribution (torch's GELU)."""
    inner: Floats = _erf(x * np.float32(math.sqrt(0.5))).astype(np.float32)
    return x * (np.float32(0.5) + np.float32(0.5) * inner)


def softmax(scores: Floats) -> Floats:
    """Over the last axis; -inf gives 0, and not every score of a row may be that."""
    raised: Floats = np.exp(scores - scores.max(axis=-1, keepdims=True))
    raised /= raised.sum(axis=-1, keepdims=True)
    return raised


def log_softmax(scores: Floats) -> Floats:
    """Over the last axis."""
    shifted: Floats = scores - scores.max(axis=-1, keepdims=True)
    total: Floats = np.exp(shifted).sum(axis=-1, keepdims=True)
    return shifted - np.log(total)
