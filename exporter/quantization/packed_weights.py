"""The weight file of a quantized bundle: codes and scales, and all other tensors as they were."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.checkpoint.checkpoint import Checkpoint
from quatrain.exporter.checkpoint.lazy_tensor import NUMPY_DTYPES, STORED_DTYPES, LazyTensor
from quatrain.exporter.checkpoint.names import stream_table_name
from quatrain.exporter.checkpoint.safetensors_header import read_safetensors_header
from quatrain.exporter.decoder.joined_projections import Joined
from quatrain.exporter.derivation.tensor_file import TensorSource, write_tensor_file
from quatrain.exporter.errors import ExportError
from quatrain.exporter.quantization.groups import (
    Groups,
    pack_nibbles,
    put_side_by_side,
    quantize,
)
from quatrain.exporter.quantization.scheme import Operand, Scheme, choose_operands
from quatrain.exporter.spec import DType

__all__ = [
    "PackedMatrix",
    "PackedWeights",
    "count_packed_bytes",
    "pack_weights",
    "plan_packing",
]


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """Where the codes [K, N] of an operand lie, and its scales [K / group, N] by type: of a weight
    [N, K], or of several side by side.

    `codes` are bytes: two codes each if `bits` is 4.
    """

    names: tuple[str, ...]
    bits: int
    shape: tuple[int, int]
    codes: LazyTensor
    scales: dict[str, LazyTensor]


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """A checkpoint whose tensors are in the packed file, and the operands that are codes there, by
    name.

    A tensor that was packed is in `checkpoint.tensors` only if something else reads it, too (an
    embedding table that also makes the logits).
    """

    checkpoint: Checkpoint
    matrices: dict[str, PackedMatrix]
    scheme: Scheme

    @property
    def joined(self) -> Joined:
        """The weights that lie side by side."""
        matrices = self.matrices.values()
        return frozenset(matrix.names for matrix in matrices if len(matrix.names) > 1)


def pack_weights(checkpoint: Checkpoint, scheme: Scheme, path: Path, dtype: DType) -> PackedWeights:
    """Write the file, one operand in memory at a time.

    Args:
        dtype: The compute type of the engines, in which the scales are stored beside float32.
    """
    operands = choose_operands(checkpoint.spec, checkpoint.tensors, scheme)
    write_tensor_file(path, _list_sources(checkpoint, operands, scheme, dtype))
    return _describe(checkpoint, operands, scheme, dtype, read_safetensors_header(path), path)


def plan_packing(checkpoint: Checkpoint, scheme: Scheme, dtype: DType) -> PackedWeights:
    """What `pack_weights` would give, of a file that is not there: sizes are right, places not."""
    path = Path("packed.safetensors")
    operands = choose_operands(checkpoint.spec, checkpoint.tensors, scheme)
    tensors = {
        name: LazyTensor(name, path, source.dtype, source.shape, 0, source.nbytes, name)
        for name, source in _list_sources(checkpoint, operands, scheme, dtype).items()
    }
    return _describe(checkpoint, operands, scheme, dtype, tensors, path)


def _describe(
    checkpoint: Checkpoint,
    operands: Sequence[Operand],
    scheme: Scheme,
    dtype: DType,
    tensors: Mapping[str, LazyTensor],
    path: Path,
) -> PackedWeights:
    matrices = {}
    for operand in operands:
        shapes = [checkpoint.tensors[name].shape for name in operand.names]
        matrices[operand.name] = PackedMatrix(
            names=operand.names,
            bits=operand.bits,
            shape=(shapes[0][1], sum(rows for rows, _ in shapes)),
            codes=tensors[f"{operand.name}.codes"],
            scales={
                kind: tensors[f"{operand.name}.scales.{kind}"] for kind in _list_scale_types(dtype)
            },
        )
    kept = {name: tensors[name] for name in checkpoint.tensors if name in tensors}
    return PackedWeights(replace(checkpoint, tensors=kept, files=[path]), matrices, scheme)


def count_packed_bytes(checkpoint: Checkpoint, scheme: Scheme, dtype: DType) -> int:
    """Bytes of the tensors in the file that `pack_weights` would write."""
    operands = choose_operands(checkpoint.spec, checkpoint.tensors, scheme)
    sources = _list_sources(checkpoint, operands, scheme, dtype)
    return sum(source.nbytes for source in sources.values())


def _list_tables(checkpoint: Checkpoint) -> frozenset[str]:
    """The embedding tables: rows are looked up in them, so they stay as they are."""
    return frozenset(map(stream_table_name, range(checkpoint.spec.num_streams)))


def _list_sources(
    checkpoint: Checkpoint, operands: Sequence[Operand], scheme: Scheme, dtype: DType
) -> dict[str, TensorSource]:
    """By name what the file holds: an operand where the first of its weights was."""
    sources: dict[str, TensorSource] = {}
    types = _list_scale_types(dtype)
    scale_dtype = NUMPY_DTYPES[STORED_DTYPES[dtype]]
    tables = _list_tables(checkpoint)
    packed = {name for operand in operands for name in operand.names}
    by_first = {operand.names[0]: operand for operand in operands}
    for name, tensor in checkpoint.tensors.items():
        if name in by_first:
            operand = by_first[name]
            tensors = [checkpoint.tensors[part] for part in operand.names]
            matrix = _Matrix(tensors, operand.bits, scheme.group_size, scale_dtype)
            sources[f"{operand.name}.codes"] = _Codes(matrix)
            for kind in types:
                scales = _Scales(matrix, kind, is_last=kind == types[-1])
                sources[f"{operand.name}.scales.{kind}"] = scales
        if name not in packed or name in tables:
            sources[name] = tensor
    return sources


def _list_scale_types(dtype: DType) -> list[str]:
    """Those of the CPU's graphs and of the engines'."""
    return list(dict.fromkeys(("float32", dtype)))


class _Matrix:
    """An operand whose codes and scales are written one after the other, and made once for both."""

    def __init__(
        self,
        tensors: Sequence[LazyTensor],
        bits: int,
        group_size: int,
        dtype: np.dtype[np.generic],
    ) -> None:
        self.bits = bits
        self.rows = sum(tensor.shape[0] for tensor in tensors)
        self.columns = tensors[0].shape[1]
        self.num_groups = self.columns // group_size
        self._tensors, self._group_size, self._dtype = tensors, group_size, dtype
        self._groups: Groups | None = None

    def quantize(self) -> Groups:
        """From the stored weights, at the first call."""
        if self._groups is None:
            parts = [self._quantize_part(tensor) for tensor in self._tensors]
            self._groups = parts[0] if len(parts) == 1 else put_side_by_side(parts)
        return self._groups

    def _quantize_part(self, tensor: LazyTensor) -> Groups:
        weight = cast("NDArray[np.floating]", tensor.read())
        self._check_range(tensor.name, weight)
        return quantize(weight, self.bits, self._group_size, self._dtype)

    def _check_range(self, name: str, weight: NDArray[np.floating]) -> None:
        """NaN and infinity are looked for in all tensors at once (`refuse_bad_weights`)."""
        with np.errstate(invalid="ignore", over="ignore"):
            peak = np.abs(weight).max().astype(np.float32)
            rounded = peak.astype(self._dtype).astype(np.float32)
        if np.isfinite(peak) and not np.isfinite(rounded):
            raise ExportError(
                f"codes for {name} (--quantize)",
                f"it has a weight of {peak:.3g}, which is too large for {self._dtype}",
                "compute in another type (--dtype bfloat16)",
            )

    def release(self) -> None:
        """All is written."""
        self._groups = None


@dataclass(frozen=True, slots=True)
class _Codes:
    matrix: _Matrix
    dtype: str = "U8"

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.nbytes,)

    @property
    def nbytes(self) -> int:
        return self.matrix.rows * self.matrix.columns * self.matrix.bits // 8

    def chunks(self, chunk_bytes: int = 1 << 24) -> Iterator[memoryview]:
        codes = self.matrix.quantize().codes
        yield memoryview((pack_nibbles(codes) if self.matrix.bits == 4 else codes).tobytes())


@dataclass(frozen=True, slots=True)
class _Scales:
    matrix: _Matrix
    kind: str
    is_last: bool

    @property
    def dtype(self) -> str:
        return STORED_DTYPES[self.kind]

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.matrix.num_groups, self.matrix.rows)

    @property
    def nbytes(self) -> int:
        return self.matrix.num_groups * self.matrix.rows * NUMPY_DTYPES[self.dtype].itemsize

    def chunks(self, chunk_bytes: int = 1 << 24) -> Iterator[memoryview]:
        scales = self.matrix.quantize().scales
        if self.is_last:
            self.matrix.release()
        yield memoryview(scales.astype(NUMPY_DTYPES[self.dtype]).tobytes())
