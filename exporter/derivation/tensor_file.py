"""A safetensors file of tensors that are copied or made, written as a stream.

The format: github.com/huggingface/safetensors, README "Format".
"""

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.checkpoint.lazy_tensor import NUMPY_DTYPES

__all__ = ["ArrayTensor", "TensorSource", "write_tensor_file"]

_ALIGNMENT = 8  # of the data, so that mapped elements are aligned; the format pads with spaces
_CHUNK_BYTES = 1 << 24


class TensorSource(Protocol):
    """Bytes of a tensor, little-endian and row-major, and what they are; `dtype` is safetensors'
    name. A `LazyTensor` is one."""

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def nbytes(self) -> int: ...

    def chunks(self, chunk_bytes: int = ...) -> Iterator[memoryview]:
        """The bytes in order; a chunk is valid until the next one is asked for."""
        ...


@dataclass(frozen=True, slots=True)
class ArrayTensor:
    """An array that is stored as `dtype`: F32, F16 or BF16."""

    array: NDArray[np.floating]
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.array.shape

    @property
    def nbytes(self) -> int:
        """Bytes as it is stored."""
        return self.array.size * NUMPY_DTYPES[self.dtype].itemsize

    def chunks(self, chunk_bytes: int = _CHUNK_BYTES) -> Iterator[memoryview]:
        """The bytes in order."""
        stored = memoryview(self.array.astype(NUMPY_DTYPES[self.dtype]).tobytes())
        for at in range(0, len(stored), chunk_bytes):
            yield stored[at : at + chunk_bytes]


def write_tensor_file(path: Path, sources: Mapping[str, TensorSource]) -> None:
    """Write each source's bytes under a name, never more than a chunk of them in memory.

    Raises:
        CheckpointError: A source has become shorter since it was opened.
        FileExistsError: There is such a file already.
    """
    with path.open("xb") as file:
        file.write(_make_header(sources))
        for source in sources.values():
            for chunk in source.chunks(_CHUNK_BYTES):
                file.write(chunk)


def _make_header(sources: Mapping[str, TensorSource]) -> bytes:
    # transformers opens no file without this format entry.
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, source in sources.items():
        offsets = [position, position + source.nbytes]
        header[name] = {"dtype": source.dtype, "shape": source.shape, "data_offsets": offsets}
        position += source.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text
