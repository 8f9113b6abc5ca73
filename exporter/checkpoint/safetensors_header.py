"""The header of a safetensors file, checked before anything relies on it.

The format (github.com/huggingface/safetensors, README "Format"): 8 bytes little-endian header
length N, N bytes of JSON {name: {dtype, shape, data_offsets: [begin, end]}}, then the data, which
the tensors fill without holes or overlaps. Offsets are counted from the start of the data.
"""

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NoReturn, TypeGuard

from quatrain.exporter.checkpoint.json_file import parse_json_object
from quatrain.exporter.checkpoint.lazy_tensor import BITS, LazyTensor
from quatrain.exporter.errors import CheckpointError

__all__ = ["MAX_HEADER_BYTES", "read_safetensors_header"]

MAX_HEADER_BYTES = 100_000_000  # the limit of the format's own library
_LENGTH = struct.Struct("<Q")
_LFS_POINTER = b"version https://git-lfs.github.com/"
_REFETCH = "fetch the file again; it was cut short or altered"


def read_safetensors_header(path: Path) -> dict[str, LazyTensor]:
    """Find every tensor of a file, by its stored name; no tensor data is read.

    Raises:
        CheckpointError: The file is not a whole, consistent safetensors file.
    """
    try:
        with path.open("rb") as file:
            file_bytes = file.seek(0, 2)
            file.seek(0)
            header = _read_header(path, file, file_bytes)
            data_start = file.tell()
    except OSError as error:
        raise CheckpointError(
            f"reading {path}", f"{error.strerror or error}", "check the file and its permissions"
        ) from error
    header.pop("__metadata__", None)
    tensors = {name: _locate(path, name, entry, data_start) for name, entry in header.items()}
    _check_layout(path, tensors, data_start, file_bytes)
    return tensors


def _read_header(path: Path, file: BinaryIO, file_bytes: int) -> dict[str, object]:
    prefix = file.read(len(_LFS_POINTER))
    if prefix == _LFS_POINTER:
        raise CheckpointError(
            f"the weights in {path}",
            "the file is a Git LFS pointer: a few lines of text in the weights' place",
            "run `git lfs pull` in the checkpoint's repository, or download the file itself",
        )
    if file_bytes < _LENGTH.size:
        _refuse(path, f"only {file_bytes} bytes, too few for a header", _REFETCH)
    (length,) = _LENGTH.unpack(prefix[: _LENGTH.size])
    if length > MAX_HEADER_BYTES:
        _refuse(
            path,
            f"a header of {length} bytes is announced; the format allows {MAX_HEADER_BYTES}",
            "check that this is a safetensors file, and fetch it again if it should be",
        )
    if _LENGTH.size + length > file_bytes:
        _refuse(path, f"a header of {length} bytes in a file of {file_bytes} bytes", _REFETCH)
    file.seek(_LENGTH.size)
    try:
        return parse_json_object(file.read(length))
    except ValueError as error:
        _refuse(path, f"the header is not valid: {error}", _REFETCH)


def _locate(path: Path, name: str, entry: object, data_start: int) -> LazyTensor:
    if not isinstance(entry, Mapping):
        _refuse(path, f"the entry of tensor {name} is not an object", _REFETCH)
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in BITS:
        known = ", ".join(BITS)
        _refuse(path, f"tensor {name} has the unknown dtype {dtype!r} (known: {known})", _REFETCH)
    if not _are_sizes(shape):
        _refuse(path, f"tensor {name} has the shape {shape!r}", _REFETCH)
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        _refuse(path, f"tensor {name} has the data_offsets {offsets!r}", _REFETCH)
    begin, end = offsets
    bits = math.prod(shape) * BITS[dtype]
    if bits % 8 or end - begin != bits // 8:
        _refuse(
            path,
            f"tensor {name} of shape {list(shape)} and dtype {dtype} needs {bits / 8:g} bytes, "
            f"its data_offsets {[begin, end]} hold {end - begin}",
            _REFETCH,
        )
    return LazyTensor(name, path, dtype, tuple(shape), data_start + begin, end - begin, name)


def _are_sizes(values: object) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _check_layout(
    path: Path, tensors: Mapping[str, LazyTensor], data_start: int, file_bytes: int
) -> None:
    position, previous = data_start, "the header"
    for tensor in sorted(tensors.values(), key=lambda t: (t.offset, t.offset + t.nbytes)):
        if tensor.offset + tensor.nbytes > file_bytes:
            _refuse(
                path,
                f"tensor {tensor.name} ends at byte {tensor.offset + tensor.nbytes}, "
                f"the file has {file_bytes}",
                _REFETCH,
            )
        if tensor.offset < position:
            _refuse(path, f"tensor {tensor.name} overlaps {previous}", _REFETCH)
        if tensor.offset > position:
            hole = tensor.offset - position
            _refuse(path, f"a hole of {hole} bytes before tensor {tensor.name}", _REFETCH)
        position, previous = tensor.offset + tensor.nbytes, f"tensor {tensor.name}"
    if position != file_bytes:
        _refuse(path, f"{file_bytes - position} bytes after the last tensor", _REFETCH)


def _refuse(path: Path, found: str, fix: str) -> NoReturn:
    raise CheckpointError(f"the tensors of {path}", found, fix)
