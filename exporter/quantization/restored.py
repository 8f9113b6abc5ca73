"""A checkpoint as its quantized bundle has it: what the codes stand for, as float32 weights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.checkpoint.checkpoint import Checkpoint
from quatrain.exporter.checkpoint.lazy_tensor import NUMPY_DTYPES, STORED_DTYPES, LazyTensor
from quatrain.exporter.checkpoint.names import EMBEDDINGS, LM_HEAD
from quatrain.exporter.quantization.groups import dequantize, quantize
from quatrain.exporter.quantization.scheme import Scheme, choose_operands
from quatrain.exporter.spec import DType

__all__ = ["restore_checkpoint"]


def restore_checkpoint(checkpoint: Checkpoint, scheme: Scheme, dtype: DType) -> Checkpoint:
    """The same decoder with rounded weights, made again from the stored ones when they are read.

    A table that is both looked up and multiplied with is rounded in the latter use only: the head
    then has a tensor of its own.

    Args:
        dtype: The compute type whose numbers the scales are.
    """
    operands = choose_operands(checkpoint.spec, checkpoint.tensors, scheme)
    widths = {name: operand.bits for operand in operands for name in operand.names}
    tensors: dict[str, LazyTensor] = dict(checkpoint.tensors)
    spec = checkpoint.spec
    for name, bits in widths.items():
        restored = _restore(checkpoint.tensors[name], bits, scheme, dtype)
        tensors[LM_HEAD if name == EMBEDDINGS else name] = restored
    if EMBEDDINGS in widths:
        spec = replace(spec, backbone=replace(spec.backbone, tie_word_embeddings=False))
    return replace(checkpoint, spec=spec, tensors=cast("Mapping[str, LazyTensor]", tensors))


@dataclass(frozen=True, slots=True)
class _RestoredTensor(LazyTensor):
    """A stored tensor that is read as codes and scales would give it back."""

    bits: int
    group_size: int
    scale_dtype: str

    def read(self) -> NDArray[np.generic]:
        """float32 of `shape`."""
        stored = cast("NDArray[np.floating]", LazyTensor.read(self))
        scales = NUMPY_DTYPES[self.scale_dtype]
        return dequantize(quantize(stored, self.bits, self.group_size, scales))


def _restore(tensor: LazyTensor, bits: int, scheme: Scheme, dtype: DType) -> LazyTensor:
    return _RestoredTensor(
        name=tensor.name,
        file=tensor.file,
        dtype=tensor.dtype,
        shape=tensor.shape,
        offset=tensor.offset,
        nbytes=tensor.nbytes,
        stored_name=tensor.stored_name,
        bits=bits,
        group_size=scheme.group_size,
        scale_dtype=STORED_DTYPES[dtype],
    )
