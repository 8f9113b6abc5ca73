"""The weight files of a checkpoint folder: one safetensors file, or shards with an index."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath, PureWindowsPath

from quatrain.exporter.checkpoint.json_file import read_json_object
from quatrain.exporter.checkpoint.lazy_tensor import LazyTensor
from quatrain.exporter.checkpoint.listing import shorten
from quatrain.exporter.checkpoint.safetensors_header import read_safetensors_header
from quatrain.exporter.errors import CheckpointError

__all__ = ["StoredWeights", "check_file_names", "read_weights", "strip_wrappers"]

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# torch.compile and Lightning Fabric keep a wrapped module under these names.
WRAPPERS = ("_orig_mod", "_forward_module")

_CONVERT = (
    "convert it: load it once with transformers, if you trust its source (unpickling runs code), "
    "and write it with model.save_pretrained(folder)"
)
_REFETCH = "fetch the checkpoint again, whole"
_OTHER_FORMATS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*.h5", "*.msgpack", "*.onnx")


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """The files with weights, and every tensor in them by its name without wrappers."""

    files: tuple[Path, ...]
    tensors: Mapping[str, LazyTensor]


def read_weights(folder: Path) -> StoredWeights:
    """Find every tensor of a checkpoint by reading the headers of its safetensors files.

    As in transformers, `model.safetensors` goes before an index.

    Raises:
        CheckpointError: There are no safetensors weights, or they are damaged or contradictory.
    """
    if (folder / SINGLE).exists():
        files, tensors = [folder / SINGLE], read_safetensors_header(folder / SINGLE)
    elif (folder / INDEX).exists():
        files, tensors = _read_shards(folder)
    else:
        file = _find_only_file(folder)
        files, tensors = [file], read_safetensors_header(file)
    check_file_names(folder, files)
    return StoredWeights(tuple(files), strip_wrappers(folder, tensors.values()))


def strip_wrappers(folder: Path, tensors: Iterable[LazyTensor]) -> dict[str, LazyTensor]:
    """Name tensors as they are in the module that torch.compile or Lightning Fabric wrapped.

    Raises:
        CheckpointError: Two names become the same.
    """
    renamed = [replace(tensor, name=_unwrap(tensor.stored_name)) for tensor in tensors]
    counts = Counter(tensor.name for tensor in renamed)
    clashes = sorted(tensor.stored_name for tensor in renamed if counts[tensor.name] > 1)
    if clashes:
        raise CheckpointError(
            f"the tensors of {folder} without {' and '.join(WRAPPERS)} in their names",
            f"names that become the same: {shorten(clashes)}",
            "save the model again from the module inside the wrapped one",
        )
    return {tensor.name: tensor for tensor in renamed}


def check_file_names(folder: Path, files: Iterable[Path]) -> None:
    """A manifest and an ONNX graph name these files, in UTF-8 and with / between folders.

    Raises:
        CheckpointError: A name has something else in it.
    """
    bad = [file.name for file in files if "\\" in file.name or not _is_utf8(file.name)]
    if bad:
        raise CheckpointError(
            f"the weights of {folder}",
            f"file names with bytes that are not UTF-8, or with a backslash: {shorten(bad)}",
            "rename these files (and in the index, if there is one)",
        )


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # Python's stand-in for a stray byte of a file name
        return False
    return True


def _find_only_file(folder: Path) -> Path:
    asked = f"the weights of {folder}"
    found = sorted(folder.glob("*.safetensors"))
    if len(found) > 1:
        names = shorten([file.name for file in found])
        raise CheckpointError(
            asked,
            f"several safetensors files ({names}) but neither {SINGLE} nor {INDEX}",
            f"add the checkpoint's {INDEX}, or keep one file",
        )
    if not found:
        other = sorted(f.name for pattern in _OTHER_FORMATS for f in folder.glob(pattern))
        if other:
            raise CheckpointError(
                asked, f"no safetensors file, only {shorten(other)}, never opened here", _CONVERT
            )
        raise CheckpointError(
            asked, f"neither {SINGLE} nor {INDEX}", "give the folder that holds the weights"
        )
    if found[0].name.startswith("adapter_"):
        raise CheckpointError(
            asked,
            f"only {found[0].name}: a low-rank adapter, not a whole model",
            "merge the adapter into its base model (peft: merge_and_unload) and save that",
        )
    return found[0]


def _read_shards(folder: Path) -> tuple[list[Path], dict[str, LazyTensor]]:
    shards = _read_index(folder)
    tensors: dict[str, LazyTensor] = {}
    for shard, listed in shards.items():
        stored = read_safetensors_header(shard)
        _check_shard(folder, shard, listed, stored, tensors)
        tensors.update(stored)
    return list(shards), tensors


def _read_index(folder: Path) -> dict[Path, set[str]]:
    """The names of the tensors that each shard should hold, by the shard's path."""
    index = folder / INDEX
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, Mapping) or not weight_map:
        raise CheckpointError(f"the shards listed in {index}", "no weight_map", _REFETCH)
    shards: dict[Path, set[str]] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _stays_inside(shard):
            raise CheckpointError(
                f"the shard of tensor {name}, listed in {index}",
                f"{shard!r}, which is not the path of a file inside the checkpoint folder",
                "do not use this checkpoint unless you know why; correct the index",
            )
        shards.setdefault(folder / shard, set()).add(name)
    missing = [path.name for path in sorted(shards) if not path.exists()]
    if missing:
        raise CheckpointError(
            f"the {len(shards)} shards listed in {index}",
            f"missing: {shorten(missing)}",
            "fetch the missing files into the folder",
        )
    _check_shard_names(index, shards)
    return dict(sorted(shards.items()))


def _check_shard_names(index: Path, shards: Iterable[Path]) -> None:
    """A bundle keeps all weight files in one folder, under their own names."""
    counts = Counter(shard.name for shard in shards)
    clashes = sorted(name for name, count in counts.items() if count > 1)
    if clashes:
        raise CheckpointError(
            f"the {counts.total()} shards listed in {index}",
            f"the same file name in several folders: {shorten(clashes)}",
            "give each shard a name of its own, there and in the index",
        )


def _stays_inside(shard: str) -> bool:
    # A look at the name only: in the Hugging Face cache the files are links to another folder.
    posix, windows = PurePosixPath(shard), PureWindowsPath(shard)
    if posix.is_absolute() or windows.drive or windows.root:
        return False
    return bool(posix.parts) and ".." not in windows.parts and "\0" not in shard


def _check_shard(
    folder: Path,
    shard: Path,
    listed: set[str],
    stored: Mapping[str, LazyTensor],
    earlier: Mapping[str, LazyTensor],
) -> None:
    asked = f"the tensors of {shard} as listed in {folder / INDEX}"
    twice = sorted(stored.keys() & earlier.keys())
    if twice:
        other = earlier[twice[0]].file.name
        raise CheckpointError(asked, f"also in {other}: {shorten(twice)}", _REFETCH)
    absent = sorted(listed - stored.keys())
    if absent:
        raise CheckpointError(asked, f"not in the shard: {shorten(absent)}", _REFETCH)
    unlisted = sorted(stored.keys() - listed)
    if unlisted:
        raise CheckpointError(asked, f"not listed for it: {shorten(unlisted)}", _REFETCH)


def _unwrap(stored_name: str) -> str:
    return ".".join(part for part in stored_name.split(".") if part not in WRAPPERS)
