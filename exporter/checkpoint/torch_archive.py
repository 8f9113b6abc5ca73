"""Tensors of a file of torch.save, by their place in it: without torch, and without running it.

The format (torch/serialization.py, since torch 1.6): an uncompressed zip of one folder with
data.pkl, the pickle of an object, data/KEY, the elements of each storage, and `byteorder`.
"""

import math
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from quatrain.exporter.checkpoint.lazy_tensor import BITS, LazyTensor
from quatrain.exporter.checkpoint.listing import shorten
from quatrain.exporter.checkpoint.torch_pickle import PickledStorage, PickledTensor, read_pickle
from quatrain.exporter.errors import CheckpointError

__all__ = ["read_torch_tensors"]

MAX_PICKLE_BYTES = 100_000_000
_MAX_NAME = 1000
# Python refuses to print very long numbers, and no file has places for so many elements.
_MAX_SIZE = 2**63
_PICKLE = "data.pkl"
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, lengths of the name and of the extra field
_SIGNATURE = b"PK\x03\x04"
_LFS_POINTER = b"version https://git-lfs.github.com/"

# Storages by safetensors' names of their dtypes.
_DTYPES = {
    "torch.FloatStorage": "F32",
    "torch.HalfStorage": "F16",
    "torch.BFloat16Storage": "BF16",
    "torch.DoubleStorage": "F64",
    "torch.LongStorage": "I64",
    "torch.IntStorage": "I32",
    "torch.ShortStorage": "I16",
    "torch.CharStorage": "I8",
    "torch.ByteStorage": "U8",
    "torch.BoolStorage": "BOOL",
    "torch.ComplexFloatStorage": "C64",
}

_REFETCH = "fetch the file again; it was cut short or altered"
_SAVE_AGAIN = (
    "load it once with torch.load(path, weights_only=True), which runs no code, make its tensors "
    "contiguous, and write it again with torch.save"
)


@dataclass(frozen=True, slots=True)
class _Archive:
    """The entries of the zip by their name inside its folder, and where their bytes begin."""

    path: Path
    entries: Mapping[str, zipfile.ZipInfo]
    offsets: Mapping[str, int]
    pickle: bytes


def read_torch_tensors(path: Path, section: str) -> dict[str, LazyTensor]:
    """Find the tensors of one state dict, by its key in the saved dict; no tensor data is read.

    The rest of the file, such as the state of an optimizer, is left alone.

    Raises:
        CheckpointError: The file is no whole torch file, is of a kind whose tensors cannot be
            referred to, or has code in it.
    """
    archive = _open_archive(path)
    saved = read_pickle(archive.pickle, path)
    if not isinstance(saved, dict) or not isinstance(saved.get(section), dict):
        held = f"a dict of {_list_keys(saved)}" if isinstance(saved, dict) else "no dict"
        _refuse(
            path,
            f"no state dict under {section!r}: the file holds {held}",
            f'save it again with torch.save({{"{section}": model.state_dict()}}, path)',
        )
    tensors: dict[str, LazyTensor] = {}
    for name, value in saved[section].items():
        if not isinstance(name, str) or len(name) > _MAX_NAME:
            kind = "very long" if isinstance(name, str) else f"no text but {type(name).__name__}"
            _refuse(path, f"a tensor whose name is {kind}", _SAVE_AGAIN)
        tensors[name] = _locate(archive, f"{section}.{name}", name, value)
    return tensors


def _list_keys(saved: Mapping[object, object]) -> str:
    return shorten([key[:_MAX_NAME] for key in saved if isinstance(key, str)]) or "nothing"


def _open_archive(path: Path) -> _Archive:
    try:
        with path.open("rb") as file:
            begin = file.read(len(_LFS_POINTER))
        _check_kind(path, begin)
        with zipfile.ZipFile(path) as archive:
            return _read_archive(path, archive)
    except (zipfile.BadZipFile, struct.error, EOFError, RuntimeError, ValueError) as error:
        _refuse(path, f"the zip archive is damaged: {error}", _REFETCH)
    except OSError as error:
        raise CheckpointError(
            f"reading {path}", f"{error.strerror or error}", "check the file and its permissions"
        ) from error


def _check_kind(path: Path, begin: bytes) -> None:
    if begin == _LFS_POINTER:
        _refuse(
            path,
            "the file is a Git LFS pointer: a few lines of text in the weights' place",
            "run `git lfs pull` in the checkpoint's repository, or download the file itself",
        )
    if not begin.startswith(_SIGNATURE):
        is_pickle = begin.startswith(b"\x80")
        _refuse(
            path,
            f"no zip archive, but {'the legacy format of' if is_pickle else 'nothing from'} "
            "torch.save",
            f"{_SAVE_AGAIN} (torch 1.6 or later, without _use_new_zipfile_serialization=False)",
        )


def _read_archive(path: Path, archive: zipfile.ZipFile) -> _Archive:
    infos = archive.infolist()
    folders = [info.filename.removesuffix(_PICKLE) for info in infos if _is_pickle(info.filename)]
    if len(folders) != 1 or len({info.filename for info in infos}) < len(infos):
        _refuse(path, f"{len(folders)} entries {_PICKLE}, or entries of the same name", _SAVE_AGAIN)
    entries = {
        info.filename.removeprefix(folders[0]): info
        for info in infos
        if info.filename.startswith(folders[0])
    }
    pickled = entries[_PICKLE]
    if pickled.file_size > MAX_PICKLE_BYTES:
        _refuse(path, f"a pickle of {pickled.file_size} bytes, without its tensors", _SAVE_AGAIN)
    for entry in (pickled, *(e for name, e in entries.items() if name.startswith("data/"))):
        _check_stored(path, entry)
    order = archive.read(entries["byteorder"]) if "byteorder" in entries else b"little"
    if order != b"little":
        _refuse(path, f"elements in {order[:8]!r} byte order", f"on a PC, {_SAVE_AGAIN}")
    offsets = {
        name: _find_data(archive, path, entry)
        for name, entry in entries.items()
        if name.startswith("data/")
    }
    return _Archive(path, entries, offsets, archive.read(pickled))


def _is_pickle(name: str) -> bool:
    return name == _PICKLE or name.endswith(f"/{_PICKLE}")


def _check_stored(path: Path, entry: zipfile.ZipInfo) -> None:
    if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
        _refuse(
            path,
            f"the entry {entry.filename} is compressed or encrypted, which torch.save never does",
            f"graphs refer to weights by their place in the file: {_SAVE_AGAIN}",
        )


def _find_data(archive: zipfile.ZipFile, path: Path, entry: zipfile.ZipInfo) -> int:
    """Where the bytes of an entry begin in the file: behind its own, local header."""
    file = archive.fp
    assert file is not None
    file.seek(entry.header_offset)
    header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size:
        _refuse(path, f"the entry {entry.filename} lies beyond the end", _REFETCH)
    signature, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
    begin = entry.header_offset + _LOCAL_HEADER.size + int(name_bytes) + int(extra_bytes)
    if signature != _SIGNATURE or begin + entry.file_size > archive.start_dir:
        _refuse(path, f"the entry {entry.filename} is not where the directory says", _REFETCH)
    return begin


def _locate(archive: _Archive, full_name: str, name: str, value: object) -> LazyTensor:
    path, asked = archive.path, f"tensor {full_name}"
    if not isinstance(value, PickledTensor):
        _refuse(path, f"{full_name} is no tensor, but a {type(value).__name__}", _SAVE_AGAIN)
    _check_types(path, asked, value)
    storage = value.storage
    dtype = _DTYPES.get(storage.type_name)
    if dtype is None:
        known = ", ".join(_DTYPES)
        _refuse(path, f"{asked} is in a {storage.type_name} (known: {known})", _SAVE_AGAIN)
    entry = archive.entries.get(f"data/{storage.key}")
    item_bytes = BITS[dtype] // 8
    if entry is None or entry.file_size != storage.num_elements * item_bytes:
        held = "is not there" if entry is None else f"has {entry.file_size} bytes"
        _refuse(
            path,
            f"{asked} needs data/{storage.key} of {storage.num_elements} {dtype}, which {held}",
            _REFETCH,
        )
    if not _is_contiguous(value):
        _refuse(
            path,
            f"{asked} of shape {list(value.shape)} has the strides {list(value.strides)}: its "
            "elements do not lie one after the other",
            _SAVE_AGAIN,
        )
    size = math.prod(value.shape)
    if value.offset + size > storage.num_elements:
        _refuse(path, f"{asked} reaches beyond its storage of {storage.num_elements}", _REFETCH)
    offset = archive.offsets[f"data/{storage.key}"] + value.offset * item_bytes
    return LazyTensor(name, path, dtype, tuple(value.shape), offset, size * item_bytes, name)


def _check_types(path: Path, asked: str, tensor: PickledTensor) -> None:
    """A pickle may have put anything in the place of these."""
    storage = tensor.storage
    if (
        not isinstance(storage, PickledStorage)
        or not isinstance(storage.key, str)
        or not _are_sizes((storage.num_elements, tensor.offset))
        or not all(map(_are_sizes, (tensor.shape, tensor.strides)))
        or len(tensor.shape) != len(tensor.strides)
    ):
        _refuse(path, f"{asked} has no shape, strides and place made of numbers", _REFETCH)


def _are_sizes(values: object) -> bool:
    return isinstance(values, tuple) and all(type(v) is int and 0 <= v < _MAX_SIZE for v in values)


def _is_contiguous(tensor: PickledTensor) -> bool:
    """Whether the elements lie in row-major order; the stride of a single one is of no meaning."""
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if size > 1 and stride != expected:
            return 0 in tensor.shape
        expected *= size
    return True


def _refuse(path: Path, found: str, fix: str) -> NoReturn:
    raise CheckpointError(f"the tensors of {path}", found, fix)
