"""A checkpoint made from another: its weights linked, new tensors beside them, config.json new."""

from quatrain.exporter.derivation.config import derive_config
from quatrain.exporter.derivation.folder import check_output, open_written, write_folder
from quatrain.exporter.derivation.tensor_file import ArrayTensor, TensorSource, write_tensor_file

__all__ = [
    "ArrayTensor",
    "TensorSource",
    "check_output",
    "derive_config",
    "open_written",
    "write_folder",
    "write_tensor_file",
]
