"""Weights of 4 or 8 bits: a packed file, and graphs that read it."""

from quatrain.exporter.quantization.packed_weights import (
    PackedWeights,
    count_packed_bytes,
    pack_weights,
    plan_packing,
)
from quatrain.exporter.quantization.restored import restore_checkpoint
from quatrain.exporter.quantization.rewrite import read_packed_weights
from quatrain.exporter.quantization.scheme import Scheme, WeightKind

__all__ = [
    "PackedWeights",
    "Scheme",
    "WeightKind",
    "count_packed_bytes",
    "pack_weights",
    "plan_packing",
    "read_packed_weights",
    "restore_checkpoint",
]
