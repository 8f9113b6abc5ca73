"""A checkpoint folder, understood: what decoder it holds and where each of its tensors is."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from quatrain.exporter.checkpoint.backbone import read_backbone
from quatrain.exporter.checkpoint.completeness import (
    MatchedTensors,
    check_layer_count,
    match_tensors,
)
from quatrain.exporter.checkpoint.drafter import read_hilp
from quatrain.exporter.checkpoint.feed_forward import check_predictors, read_bank_top_k
from quatrain.exporter.checkpoint.fields import Fields
from quatrain.exporter.checkpoint.json_file import read_json_object
from quatrain.exporter.checkpoint.lazy_tensor import SUPPORTED_DTYPES, LazyTensor
from quatrain.exporter.checkpoint.nextlat import is_nextlat, read_nextlat
from quatrain.exporter.checkpoint.nvium import (
    find_nvium_settings,
    is_nvium,
    read_exits,
    read_tie_word_embeddings,
)
from quatrain.exporter.checkpoint.streams import read_streams, rename_stream_tables
from quatrain.exporter.checkpoint.tokens import TokenSettings, read_token_settings
from quatrain.exporter.checkpoint.weight_files import read_weights
from quatrain.exporter.checkpoint.windows import read_windows
from quatrain.exporter.checkpoint.yaml_file import read_yaml_mapping
from quatrain.exporter.errors import CheckpointError
from quatrain.exporter.spec import Backbone, DecoderSpec, DType
from quatrain.runtime.errors import fix_reading
from quatrain.runtime.folder_kind import find_kind

__all__ = ["Checkpoint", "open_checkpoint"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole, consistent checkpoint; the tensors are not loaded.

    `tensors` has exactly the names of `expected_tensors(spec)`, `leftovers` the names in the
    files that no tensor of the decoder comes from. `stored_dtype` is the dtype of most bytes.
    `settings_file` is where settings outside config.json came from (N-vium, NextLat), else None.
    `document_token_id` is the token with which a document of its own begins (NextLat): nothing
    before it is attended to. `drafter_absence` says why `spec.drafter` is None.
    """

    folder: Path
    spec: DecoderSpec
    stored_dtype: DType
    tensors: Mapping[str, LazyTensor]
    leftovers: list[str]
    files: list[Path]
    eos_token_ids: list[int]
    bos_token_id: int | None
    add_bos_token: bool
    tokenizer_files: list[Path]
    settings_file: Path | None = None
    drafter_absence: str | None = None
    document_token_id: int | None = None


def open_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint folder, in Hugging Face's layout or NextLat's: settings and headers only.

    Raises:
        CheckpointError: The folder is incomplete, damaged, contradictory or not supported.
        SpecError: It describes a decoder that cannot be.
    """
    folder = Path(path)
    _check_folder(folder)
    if is_nextlat(folder):
        return _open_nextlat(folder)
    config_path = folder / "config.json"
    config = Fields(read_json_object(config_path), str(config_path))
    backbone = read_backbone(config)
    weights = read_weights(folder)
    check_layer_count(backbone.num_hidden_layers, weights.tensors, str(folder))
    spec = _read_axes(backbone, config)
    settings_file = find_nvium_settings(folder) if is_nvium(weights.tensors) else None
    if settings_file is not None:
        spec = _add_exits(spec, config, settings_file, weights.tensors)
    found = read_hilp(config, weights.tensors, str(folder))
    spec = replace(spec, drafter=found.drafter)
    named = rename_stream_tables(spec, config, weights.tensors, str(folder))
    check_predictors(spec, config, named, str(folder))
    matched = match_tensors(spec, named, str(folder))
    opened = _assemble(folder, spec, matched, read_token_settings(folder, config))
    return replace(
        opened,
        files=list(weights.files),
        settings_file=settings_file,
        drafter_absence=found.absence,
    )


def _open_nextlat(folder: Path) -> Checkpoint:
    nextlat = read_nextlat(folder)
    spec = DecoderSpec(nextlat.backbone, drafter=nextlat.found.drafter)
    settings, token = nextlat.settings_file, nextlat.document_token_id
    layers = nextlat.backbone.num_hidden_layers
    check_layer_count(layers, nextlat.tensors, str(folder), f"n_layer in {settings.name}")
    matched = match_tensors(spec, nextlat.tensors, str(folder), settings.name)
    tokens = read_token_settings(
        folder,
        Fields({"model_type": "llama", "eos_token_id": token, "bos_token_id": None}, str(settings)),
    )
    opened = _assemble(folder, spec, matched, tokens)
    return replace(
        opened,
        files=[nextlat.file],
        settings_file=settings,
        document_token_id=token,
        drafter_absence=nextlat.found.absence,
    )


def _assemble(
    folder: Path, spec: DecoderSpec, matched: MatchedTensors, tokens: TokenSettings
) -> Checkpoint:
    return Checkpoint(
        folder=folder,
        spec=spec,
        stored_dtype=_find_stored_dtype(matched.tensors),
        tensors=matched.tensors,
        leftovers=list(matched.leftovers),
        files=[],
        eos_token_ids=list(tokens.eos_token_ids),
        bos_token_id=tokens.bos_token_id,
        add_bos_token=tokens.add_bos_token,
        tokenizer_files=list(tokens.tokenizer_files),
    )


def _read_axes(backbone: Backbone, config: Fields) -> DecoderSpec:
    streams = read_streams(config, backbone.num_hidden_layers)
    windows = read_windows(config, backbone, streams)
    return DecoderSpec(
        replace(backbone, sliding_windows=windows),
        streams=streams,
        feed_forward=read_bank_top_k(config),
    )


def _add_exits(
    spec: DecoderSpec, config: Fields, path: Path, tensors: Mapping[str, LazyTensor]
) -> DecoderSpec:
    settings = Fields(read_yaml_mapping(path), str(path))
    tied = read_tie_word_embeddings(settings, config)
    backbone = replace(spec.backbone, tie_word_embeddings=tied)
    return replace(spec, backbone=backbone, exits=read_exits(settings, backbone, tensors))


def _find_stored_dtype(tensors: Mapping[str, LazyTensor]) -> DType:
    bytes_of: Counter[DType] = Counter()
    for tensor in tensors.values():
        bytes_of[SUPPORTED_DTYPES[tensor.dtype]] += tensor.nbytes
    return bytes_of.most_common(1)[0][0]


def _check_folder(folder: Path) -> None:
    """Raise `CheckpointError` unless it is a checkpoint's, and may be entered."""
    asked = f"the checkpoint folder {folder}"
    fix = (
        "give the folder that holds config.json and the safetensors weights (of NextLat: "
        "materialized_config.yaml and a .pt file)"
    )
    try:
        os.stat(os.path.join(folder, "."))
    except FileNotFoundError as error:
        raise CheckpointError(asked, "there is no such folder", fix) from error
    except NotADirectoryError as error:
        raise CheckpointError(asked, "it is a file, not a folder", fix) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(asked, reason, fix_reading(error, fix)) from error
    kind = find_kind(folder)
    if kind == "bundle":
        found = "it is a bundle, which `quatrain export` wrote"
        raise CheckpointError(asked, found, "give the checkpoint that it was exported from")
    if kind is None:
        raise CheckpointError(asked, "no config.json in it", fix)
