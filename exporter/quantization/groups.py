"""Codes and scales of one matrix."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Groups", "dequantize", "pack_nibbles", "put_side_by_side", "quantize"]

# With 4 bits it pays to clip: the largest weight of a group is rounded worse, all others better.
# With 8 it does not.
_CLIPS = {4: (1.0, 0.92, 0.84), 8: (1.0,)}


@dataclass(frozen=True, slots=True)
class Groups:
    """A matrix [K, N] as int8 codes [K, N] and float32 scales [K / group, N]; a scale is a number
    that the compute type has, too."""

    codes: NDArray[np.int8]
    scales: NDArray[np.float32]


def quantize(
    weight: NDArray[np.floating], bits: int, group_size: int, dtype: np.dtype[np.generic]
) -> Groups:
    """Signed symmetric codes from -2^(bits-1) to 2^(bits-1) - 1: round(w / scale).

    Args:
        weight: [N, K] as checkpoints store it; K a multiple of `group_size`. No weight is larger
            than `dtype` has numbers for. Of one that is not finite nothing sensible is made.
        dtype: The compute type that the scales are rounded to beforehand.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # squares of large weights may be infinite
        return _quantize(weight, bits, group_size, dtype)


def _quantize(
    weight: NDArray[np.floating], bits: int, group_size: int, dtype: np.dtype[np.generic]
) -> Groups:
    rows, columns = weight.shape
    groups = weight.astype(np.float32).T.reshape(columns // group_size, group_size, rows)
    largest = 2 ** (bits - 1) - 1
    peaks = np.abs(groups).max(axis=1)
    best: Groups | None = None
    least = np.full(peaks.shape, np.inf, np.float32)
    for clip in _CLIPS[bits]:
        found = _quantize_groups(groups, _round_scales(peaks * clip / largest, dtype), largest)
        restored = found.codes * found.scales[:, None]
        error = np.square(groups - restored, out=restored).sum(axis=1)
        if best is None:
            best, least = found, error
            continue
        better = error < least
        least = np.where(better, error, least)
        best = Groups(
            np.where(better[:, None], found.codes, best.codes),
            np.where(better, found.scales, best.scales),
        )
    assert best is not None
    return Groups(best.codes.reshape(columns, rows), best.scales)


def put_side_by_side(parts: Sequence[Groups]) -> Groups:
    """Matrices [K, N1], [K, N2], ... as one [K, N1 + N2 + ...]."""
    codes = np.concatenate([part.codes for part in parts], axis=1)
    return Groups(codes, np.concatenate([part.scales for part in parts], axis=1))


def dequantize(groups: Groups) -> NDArray[np.float32]:
    """What the codes stand for, [N, K]."""
    codes, scales = groups.codes, groups.scales
    wide = codes.reshape(len(scales), -1, codes.shape[1]) * scales[:, None]
    return wide.reshape(codes.shape).T


def pack_nibbles(codes: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Codes of 4 bits, an even number of them, two to a byte: the first in the lower half, as ONNX
    stores INT4."""
    nibbles = codes.reshape(-1, 2).astype(np.uint8) & 15
    return np.asarray(nibbles[:, 0] | nibbles[:, 1] << 4, np.uint8)


def _round_scales(scales: NDArray[np.float32], dtype: np.dtype[np.generic]) -> NDArray[np.float32]:
    """To the compute type, and away from zero where that would leave nothing to divide by."""
    rounded = scales.astype(dtype).astype(np.float32)
    smallest = np.float32(2.0**-24)  # the least float16 above zero
    return np.where(rounded > 0, rounded, smallest)


def _quantize_groups(
    groups: NDArray[np.float32], scales: NDArray[np.float32], largest: int
) -> Groups:
    codes = np.rint(groups / scales[:, None])
    # A scale is made for what is symmetric; a negative weight beyond it has one code more.
    return Groups(np.clip(codes, -largest - 1, largest, out=codes).astype(np.int8), scales)
