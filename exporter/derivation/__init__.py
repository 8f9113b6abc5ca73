"""A checkpoint made from another: its weights linked, new tensors beside them, config.json new."""

from quatrain.exporter.derivation.config import derive_config
from quatrain.exporter.derivation.folder import check_output, write_checkpoint
from quatrain.exporter.derivation.tensor_file import ArrayTensor, TensorSource, write_tensor_file

__all__ = [
    "ArrayTensor",
    "TensorSource",
    "check_output",
    "derive_config",
    "write_checkpoint",
    "write_tensor_file",
]
