"""A stored tensor: known by its place in a file, read only when asked for."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.errors import CheckpointError
from quatrain.exporter.spec import DType

__all__ = ["BITS", "NUMPY_DTYPES", "STORED_DTYPES", "SUPPORTED_DTYPES", "LazyTensor"]

# Bits of an element of each dtype, by its name in the safetensors format.
# Source: github.com/huggingface/safetensors, README "Format" and the `Dtype` enum.
BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}

# The dtypes a weight may have, and what the rest of quatrain calls them.
SUPPORTED_DTYPES: dict[str, DType] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
STORED_DTYPES: dict[str, str] = {dtype: stored for stored, dtype in SUPPORTED_DTYPES.items()}

NUMPY_DTYPES: dict[str, np.dtype[np.generic]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """A tensor of a safetensors or torch file, or some rows of one.

    `name` is the name used by quatrain, `stored_name` the one in the file (they differ where
    torch.compile left its prefix, where a tied tensor is stored under its other name, and where
    the file's layout is another: several tensors may then be parts of one that is stored).
    `offset` is counted in bytes from the start of the file; elements are little-endian, row-major.
    """

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    stored_name: str

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def read(self) -> NDArray[np.generic]:
        """Map the tensor into memory, read-only: float32, float16 or bfloat16 of `shape`.

        Raises:
            CheckpointError: The tensor is of another dtype.
        """
        dtype = NUMPY_DTYPES.get(self.dtype)
        if dtype is None:
            raise CheckpointError(
                f"reading tensor {self.stored_name} of {self.file}",
                f"it is stored as {self.dtype}",
                f"store it as one of {', '.join(SUPPORTED_DTYPES)}",
            )
        if self.nbytes == 0:
            return np.empty(self.shape, dtype)
        return np.memmap(self.file, dtype, "r", self.offset, self.shape)

    def chunks(self, chunk_bytes: int = 1 << 24) -> Iterator[memoryview]:
        """Read the bytes in order, at most `chunk_bytes` of them in memory at a time.

        A chunk is valid until the next one is asked for.

        Raises:
            CheckpointError: The file has become shorter since it was opened.
        """
        buffer = memoryview(bytearray(min(chunk_bytes, max(self.nbytes, 1))))
        left = self.nbytes
        with self.file.open("rb", buffering=0) as file:
            file.seek(self.offset)
            while left:
                count = file.readinto(buffer[: min(left, len(buffer))])
                if not count:
                    raise CheckpointError(
                        f"reading tensor {self.stored_name} of {self.file}",
                        f"the file ends {left} bytes too early",
                        "do not change the checkpoint while it is read; fetch it again",
                    )
                left -= count
                yield buffer[:count]
