"""The folder of a derived checkpoint: its weights, index, config.json and all small files."""

import json
import os
import shutil
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from quatrain.exporter.bundle import WeightsMode, place_weights
from quatrain.exporter.checkpoint import Checkpoint, open_checkpoint
from quatrain.exporter.checkpoint.nextlat import is_nextlat
from quatrain.exporter.checkpoint.nvium import place_nvium_settings
from quatrain.exporter.checkpoint.weight_files import INDEX, SINGLE, read_weights
from quatrain.exporter.derivation.tensor_file import TensorSource, write_tensor_file
from quatrain.exporter.errors import ExportError
from quatrain.exporter.progress import Progress
from quatrain.exporter.staging import check_place, staged_folder
from quatrain.runtime.errors import QuatrainError

__all__ = ["check_output", "write_checkpoint"]

# Tokenizer, generation defaults, and what says who may do what with the model.
_SMALL_FILES = (
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template.*",
    "README*",
    "LICENSE*",
    "NOTICE*",
    "USE_POLICY*",
)
# Code, and weights of other formats, whatever their names begin with.
_NEVER_COPIED = {".py", ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".onnx"}


def check_output(output: Path, source: Path, kind: str) -> None:
    """Raise `ExportError` unless `output` is free, in a folder and outside the source's, and the
    source in a layout that can be derived from.

    Args:
        kind: What is to be written, for messages: "an expanded checkpoint".
    """
    place, folder = (Path(os.path.realpath(path)) for path in (output, source))
    if place == folder or folder in place.parents:
        where = "is the source itself" if place == folder else "lies inside the source"
        raise ExportError(
            f"write {kind} to {output}",
            f"it {where}, {source}",
            "choose an -o outside it; the source is never changed",
        )
    if os.path.lexists(output):
        raise ExportError(
            f"write {kind} to {output}",
            "something is there already, and checkpoints are never replaced",
            "choose another -o, or remove it first",
        )
    check_place(output, kind)
    if is_nextlat(Path(source)):
        raise ExportError(
            f"write {kind} from {source}",
            "it is in NextLat's own layout, without a config.json to derive from",
            "use a checkpoint with a config.json and safetensors weights",
        )


def write_checkpoint(
    source: Checkpoint,
    output: Path,
    config: Mapping[str, object],
    tensors: Mapping[str, TensorSource],
    weights: WeightsMode | None,
    progress: Progress,
    *,
    kind: str,
    parts: str,
    label: str,
) -> tuple[Checkpoint, WeightsMode]:
    """Write the folder, whole or not at all, and read it back; the mode is how the old weight files
    got there, linked or copied.

    Args:
        config: The new config.json.
        tensors: The new tensors, by the names they are to be stored under; there may be none.
        kind: As for `check_output`, which is asked again.
        parts: What the tensors are, for the progress: "tables".
        label: What their file is called beside shards: "model-{label}.safetensors".

    Raises:
        CheckpointError: The source has changed since it was opened.
        ExportError: It cannot be written or read back, or the weight files cannot be linked, and
            `weights` says they must.
    """
    check = partial(check_output, source=source.folder, kind=kind)
    with staged_folder(output, kind="a checkpoint", check_output=check) as staging:
        mode = _fill(staging, source, config, tensors, weights, progress, parts, label)
        with progress.stage("check result"):
            return _open_written(staging, output), mode


def _fill(
    folder: Path,
    source: Checkpoint,
    config: Mapping[str, object],
    tensors: Mapping[str, TensorSource],
    weights: WeightsMode | None,
    progress: Progress,
    parts: str,
    label: str,
) -> WeightsMode:
    places = _plan_places(source, has_new=bool(tensors))
    with progress.stage("place weights") as stage:
        mode = _place_files(folder, places, weights, progress)
        if mode == "copy":
            stage.bytes = sum(file.stat().st_size for file in places)
    new_file = _choose_new_name(places, label)
    if tensors:
        with progress.stage(f"write {parts}") as stage:
            write_tensor_file(folder / new_file, tensors)
            stage.bytes = sum(tensor.nbytes for tensor in tensors.values())
    if list(places.values()) != [SINGLE]:
        _write_json(folder / INDEX, _make_index(source, places, tensors, new_file))
    _write_json(folder / "config.json", config)
    _copy_small_files(source, folder)
    return mode


def _open_written(staging: Path, output: Path) -> Checkpoint:
    try:
        return open_checkpoint(staging)
    except QuatrainError as error:
        raise ExportError(
            f"write a checkpoint to {output}",
            f"it could not be read back ({error.asked}: {error.found}), and has been removed",
            error.fix,
        ) from error


def _plan_places(source: Checkpoint, has_new: bool) -> dict[Path, str]:
    """Where each weight file goes, relative to the new folder."""
    if len(source.files) == 1:
        # Readers take a model.safetensors for the whole model and do not look at the index.
        return {source.files[0]: "model-00001-of-00002.safetensors" if has_new else SINGLE}
    return {file: file.relative_to(source.folder).as_posix() for file in source.files}


def _choose_new_name(places: Mapping[Path, str], label: str) -> str:
    if len(places) == 1:
        return "model-00002-of-00002.safetensors"
    taken = {Path(place).name.lower() for place in places.values()}
    name, number = f"model-{label}.safetensors", 1
    while name in taken:
        number += 1
        name = f"model-{label}-{number}.safetensors"
    return name


def _place_files(
    folder: Path, places: Mapping[Path, str], weights: WeightsMode | None, progress: Progress
) -> WeightsMode:
    mode: WeightsMode = "link"
    for file, place in places.items():
        mode, _ = place_weights(file, folder / place, weights)
        progress.say(f"  {place}: {'copied' if mode == 'copy' else 'linked'}")
        if mode == "copy":
            weights = "copy"  # once one file had to be copied, so are those after it
    return mode


def _make_index(
    source: Checkpoint,
    places: Mapping[Path, str],
    tensors: Mapping[str, TensorSource],
    new_file: str,
) -> dict[str, object]:
    """All tensors of the files, also those the decoder has no use for, by their stored names."""
    stored = list(read_weights(source.folder).tensors.values())
    weight_map = {tensor.stored_name: places[tensor.file] for tensor in stored}
    weight_map |= dict.fromkeys(tensors, new_file)
    total_size = sum(tensor.nbytes for tensor in (*stored, *tensors.values()))
    return {"metadata": {"total_size": total_size}, "weight_map": weight_map}


def _copy_small_files(source: Checkpoint, target: Path) -> None:
    for file in sorted(source.folder.iterdir()):
        is_wanted = any(fnmatchcase(file.name, pattern) for pattern in _SMALL_FILES)
        if is_wanted and file.is_file() and file.suffix not in _NEVER_COPIED:
            shutil.copyfile(file, target / file.name)
    if source.settings_file is not None:  # N-vium's, which may lie outside the folder
        place = target / place_nvium_settings(source.settings_file)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source.settings_file, place)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
