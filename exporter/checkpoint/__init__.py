"""Readers of checkpoints on disk: what decoder a folder holds, and its tensors, not loaded."""

from quatrain.exporter.checkpoint.checkpoint import Checkpoint, open_checkpoint
from quatrain.exporter.checkpoint.completeness import IncompleteCheckpointError
from quatrain.exporter.checkpoint.lazy_tensor import LazyTensor
from quatrain.exporter.checkpoint.names import expected_tensors

__all__ = [
    "Checkpoint",
    "IncompleteCheckpointError",
    "LazyTensor",
    "expected_tensors",
    "open_checkpoint",
]
