"""Is this checkpoint the one that a bundle was made of? Settings first, then the weights' bytes."""

from pathlib import Path
from typing import Any, cast

import msgspec

from quatrain.exporter.checkpoint.checkpoint import Checkpoint, open_checkpoint
from quatrain.exporter.dense_fallback import choose_dense_fallback
from quatrain.exporter.drafter_choice import choose_drafter
from quatrain.exporter.errors import ComparisonError
from quatrain.exporter.graph_files import WEIGHTS_FOLDER
from quatrain.exporter.quantization import Scheme, restore_checkpoint
from quatrain.exporter.spec import DType
from quatrain.exporter.spec_json import describe_spec
from quatrain.runtime.manifest import FileRecord, Manifest, Quantization

__all__ = ["open_pair"]

_SAMPLES = 64
_SAMPLE_BYTES = 4096
_FIX = "give the checkpoint that this bundle was exported from, or export this one"


def open_pair(bundle: Path, manifest: Manifest, checkpoint: Path) -> Checkpoint:
    """The checkpoint, with those of its axes that the bundle was exported with.

    Raises:
        CheckpointError: It is no checkpoint, or damaged.
        ComparisonError: The bundle is of another one: other settings, files, or weights (of large
            files that are not the same by name of the file system, samples are compared).
    """
    opened = open_checkpoint(checkpoint)
    asked = f"compare {bundle} with {checkpoint}"
    chosen = _choose_axes(opened, manifest)
    difference = _find_difference(
        msgspec.to_builtins(describe_spec(chosen.spec)), msgspec.to_builtins(manifest.spec)
    )
    if difference:
        raise ComparisonError(asked, f"not the bundle's checkpoint: {difference}", _FIX)
    if manifest.quantization is not None:
        # The codes in its own file are made again of the checkpoint's weights; others would show.
        return restore_checkpoint(
            chosen, _read_scheme(manifest.quantization), _read_dtype(manifest)
        )
    records = {record.path: record for record in manifest.files}
    for file in chosen.files:
        problem = _compare_file(bundle, records.get(f"{WEIGHTS_FOLDER}/{file.name}"), file)
        if problem:
            raise ComparisonError(asked, f"not the bundle's checkpoint: {problem}", _FIX)
    return chosen


def _read_scheme(record: Quantization) -> Scheme:
    return Scheme(record.kind, record.group_size, record.head_bits)


def _read_dtype(manifest: Manifest) -> DType:
    return cast("DType", manifest.deployment_dtype)


def _choose_axes(opened: Checkpoint, manifest: Manifest) -> Checkpoint:
    """An export may leave out a drafter, and choose other dense layers."""
    if opened.spec.drafter is not None and manifest.drafter is None:
        opened = choose_drafter(opened, False)
    banks = manifest.spec.get("feed_forward")
    if banks is None or opened.spec.feed_forward is None:
        return opened
    if opened.spec.backbone.num_hidden_layers != len(manifest.cache.layers):
        return opened
    return choose_dense_fallback(opened, banks["dense_fallback_layers"])


def _find_difference(checkpoint: Any, bundle: Any, name: str = "") -> str | None:
    """The first setting in which they differ."""
    if isinstance(checkpoint, dict) and isinstance(bundle, dict):
        for key in sorted(checkpoint.keys() | bundle.keys()):
            found = _find_difference(
                checkpoint.get(key), bundle.get(key), f"{name}.{key}" if name else key
            )
            if found:
                return found
        return None
    if checkpoint == bundle:
        return None
    return f"{name} is {checkpoint!r} there and {bundle!r} in the bundle"


def _compare_file(bundle: Path, record: FileRecord | None, file: Path) -> str | None:
    if record is None:
        return f"it has a file {file.name}, which the bundle has not"
    held = bundle / record.path
    if held.samefile(file):
        return None
    size = file.stat().st_size
    if size != record.bytes:
        return f"{file.name} has {size} bytes, the bundle's has {record.bytes}"
    for offset in _choose_offsets(size):
        if _read(file, offset) != _read(held, offset):
            return f"{file.name} holds other weights from byte {offset} on"
    return None


def _choose_offsets(size: int) -> list[int]:
    """Where samples of a file begin: its header is among them, and a small file read whole."""
    if size <= _SAMPLES * _SAMPLE_BYTES:
        return list(range(0, size, _SAMPLE_BYTES))
    return [index * (size - _SAMPLE_BYTES) // (_SAMPLES - 1) for index in range(_SAMPLES)]


def _read(file: Path, offset: int) -> bytes:
    with file.open("rb") as reader:
        reader.seek(offset)
        return reader.read(_SAMPLE_BYTES)
