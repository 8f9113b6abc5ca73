"""The folder of an expanded checkpoint: its weights, index, config.json and all small files."""

import json
import os
import shutil
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from quatrain.exporter.bundle import WeightsMode, place_weights
from quatrain.exporter.checkpoint import Checkpoint, LazyTensor
from quatrain.exporter.checkpoint.json_file import read_json_object
from quatrain.exporter.checkpoint.weight_files import INDEX, read_weights
from quatrain.exporter.errors import ExportError
from quatrain.exporter.expansion.config import expand_config
from quatrain.exporter.expansion.table_file import write_table_file
from quatrain.exporter.progress import Progress
from quatrain.exporter.spec import Streams

__all__ = ["check_output", "write_folder"]

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


def check_output(output: Path, source: Path) -> None:
    """Raise `ExportError` unless `output` is free and outside the source folder."""
    place, folder = (Path(os.path.realpath(path)) for path in (output, source))
    if place == folder or folder in place.parents:
        where = "is the source itself" if place == folder else "lies inside the source"
        raise ExportError(
            f"write an expanded checkpoint to {output}",
            f"it {where}, {source}",
            "choose an -o outside it; the source is never changed",
        )
    if os.path.lexists(output):
        raise ExportError(
            f"write an expanded checkpoint to {output}",
            "something is there already, and checkpoints are never replaced",
            "choose another -o, or remove it first",
        )


def write_folder(
    folder: Path,
    source: Checkpoint,
    streams: Streams,
    tables: Mapping[str, LazyTensor],
    weights: WeightsMode | None,
    progress: Progress,
) -> WeightsMode:
    """Fill an empty folder; says whether the old weight files were linked or copied.

    Args:
        tables: The source of each new table, by the name the new one is stored under.

    Raises:
        CheckpointError: The source has changed since it was opened.
        ExportError: The weight files cannot be linked, and `weights` says they must.
    """
    places = _plan_places(source)
    with progress.stage("place weights") as stage:
        mode = _place_files(folder, places, weights, progress)
        if mode == "copy":
            stage.bytes = sum(file.stat().st_size for file in places)
    new_file = _choose_new_name(places, streams)
    with progress.stage("write tables") as stage:
        write_table_file(folder / new_file, tables, progress)
        stage.bytes = sum(table.nbytes for table in tables.values())
    _write_json(folder / INDEX, _make_index(source, places, tables, new_file))
    config = expand_config(read_json_object(source.folder / "config.json"), streams)
    _write_json(folder / "config.json", config)
    _copy_small_files(source.folder, folder)
    return mode


def _plan_places(source: Checkpoint) -> dict[Path, str]:
    """Where each weight file goes, relative to the new folder."""
    if len(source.files) == 1:
        # Readers take a model.safetensors for the whole model and do not look at the index.
        return {source.files[0]: "model-00001-of-00002.safetensors"}
    return {file: file.relative_to(source.folder).as_posix() for file in source.files}


def _choose_new_name(places: Mapping[Path, str], streams: Streams) -> str:
    if len(places) == 1:
        return "model-00002-of-00002.safetensors"
    taken = {Path(place).name.lower() for place in places.values()}
    name, number = f"model-scale-seq-n{streams.num_streams}.safetensors", 1
    while name in taken:
        number += 1
        name = f"model-scale-seq-n{streams.num_streams}-{number}.safetensors"
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
    tables: Mapping[str, LazyTensor],
    new_file: str,
) -> dict[str, object]:
    """All tensors of the files, also those the decoder has no use for, by their stored names."""
    stored = list(read_weights(source.folder).tensors.values())
    weight_map = {tensor.stored_name: places[tensor.file] for tensor in stored}
    weight_map |= dict.fromkeys(tables, new_file)
    total_size = sum(tensor.nbytes for tensor in [*stored, *tables.values()])
    return {"metadata": {"total_size": total_size}, "weight_map": weight_map}


def _copy_small_files(source: Path, target: Path) -> None:
    for file in sorted(source.iterdir()):
        is_wanted = any(fnmatchcase(file.name, pattern) for pattern in _SMALL_FILES)
        if is_wanted and file.is_file() and file.suffix not in _NEVER_COPIED:
            shutil.copyfile(file, target / file.name)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
