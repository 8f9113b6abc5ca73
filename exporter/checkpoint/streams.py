"""The sequence axis of a checkpoint: its settings in config.json, and its embedding tables."""

import re
from collections.abc import Mapping
from dataclasses import replace

from quatrain.exporter.checkpoint.backbone import is_scale_seq
from quatrain.exporter.checkpoint.fields import Fields
from quatrain.exporter.checkpoint.lazy_tensor import LazyTensor
from quatrain.exporter.checkpoint.listing import shorten
from quatrain.exporter.checkpoint.names import stream_table_name
from quatrain.exporter.errors import CheckpointError
from quatrain.exporter.spec import DecoderSpec, KVMirror, Streams

__all__ = ["read_streams", "rename_stream_tables"]

_TIMES = "scale_seq_times"
_INTRA = "scale_seq_attn_per_suffix_layerwise"
_TARGETS = "kv_mirror_layers"
_SOURCES = "kv_mirror_imitated_layers"

# What the public models call their tables is not documented, so they are known by this.
_MARK = "scale_seq"
_INDEX = re.compile(r"[^0-9]([0-9]{1,9})(?:\.weight)?\Z")
_OVER_ENCODING = re.compile(r"(?:\A|[._])oe_")

Tensors = Mapping[str, LazyTensor]


def read_streams(config: Fields, num_hidden_layers: int) -> Streams | None:
    """Read the sequence axis of a config.json; None where it has none of it.

    `scale_seq_times` counts the extra tables, one less than the streams. The list of
    stream-factorized layers is dropped where it changes nothing: a single stream is its own.

    Raises:
        CheckpointError: A malformed setting, lists of the wrong length, or a Hidden Decoding
            model_type without `scale_seq_times`.
    """
    times = config.integer(_TIMES, None if is_scale_seq(config) else 0)
    if times < 0:
        raise config.wrong(_TIMES, "a number of extra embedding tables, 0 or more")
    intra = _read_intra_stream(config, num_hidden_layers)
    mirrors = _read_mirrors(config)
    if times == 0 and not mirrors:
        return None
    return Streams(times + 1, intra if times and any(intra) else (), mirrors)


def rename_stream_tables(
    spec: DecoderSpec, config: Fields, stored: Tensors, source: str
) -> Tensors:
    """Give the extra embedding tables the names of `stream_table_name`, in order of their index.

    An extra table is any matrix whose name contains "scale_seq" and ends in an index (with or
    without ".weight" after it); the first index is 0 or 1.

    Raises:
        CheckpointError: The tables are not as many as config.json says, their indices have gaps,
            they are not all of the vocabulary's size, or they are over-encoding embeddings.
    """
    _refuse_over_encoding(stored, source)
    tables = {name: place for name, t in stored.items() if (place := _find_place(name, t))}
    names = sorted(tables, key=lambda name: tables[name])
    _check_count(spec.num_streams - 1, names, config, source)
    _check_order([tables[name] for name in names], names, source)
    _check_shapes(spec, [stored[name] for name in names], source)
    others = {name: tensor for name, tensor in stored.items() if name not in tables}
    canonical = {name: stream_table_name(s) for s, name in enumerate(names, start=1)}
    _check_free(sorted(others.keys() & canonical.values()), source)
    return others | {canonical[n]: replace(stored[n], name=canonical[n]) for n in names}


def _read_intra_stream(config: Fields, num_hidden_layers: int) -> tuple[bool, ...]:
    flags = config.get(_INTRA)
    if flags is None:
        return ()
    if not isinstance(flags, list) or not all(map(_is_flag, flags)):
        raise config.wrong(_INTRA, "a list of true and false, one for each layer")
    if len(flags) != num_hidden_layers:
        beyond = next((i for i, flag in enumerate(flags) if flag and i >= num_hidden_layers), None)
        listed = f"; a factorized layer listed beyond the depth: layer {beyond}"
        raise CheckpointError(
            f"{_INTRA} in {config.source}: one entry for each of {num_hidden_layers} layers",
            f"a list of {len(flags)}{'' if beyond is None else listed}",
            f"correct {_INTRA} or num_hidden_layers in {config.source}",
        )
    return tuple(bool(flag) for flag in flags)


def _is_flag(value: object) -> bool:
    # 0 and 1 are what some trainers write for false and true.
    return isinstance(value, int) and value in (0, 1)


def _read_mirrors(config: Fields) -> tuple[KVMirror, ...]:
    targets, sources = config.integers(_TARGETS), config.integers(_SOURCES)
    if len(targets) != len(sources):
        raise CheckpointError(
            f"{_TARGETS} and {_SOURCES} in {config.source}, pair by pair",
            f"{len(targets)} layers that mirror, {len(sources)} that are mirrored",
            f"give {_SOURCES} one layer for each of {_TARGETS}",
        )
    return tuple(KVMirror(*pair) for pair in zip(targets, sources, strict=True))


def _refuse_over_encoding(stored: Tensors, source: str) -> None:
    names = sorted(name for name in stored if _OVER_ENCODING.search(name))
    if names:
        raise CheckpointError(
            f"the embeddings of {source}",
            f"over-encoding (n-gram) embeddings, which are not supported: {shorten(names)}",
            "use a checkpoint without them; reading on would give wrong numbers silently",
        )


def _find_place(name: str, tensor: LazyTensor) -> tuple[int, str] | None:
    match = _INDEX.search(name) if _MARK in name and len(tensor.shape) == 2 else None
    return None if match is None else (int(match[1]), name[: match.start(1)])


def _check_count(times: int, names: list[str], config: Fields, source: str) -> None:
    if len(names) == times:
        return
    said = f"{_TIMES} = {times}" if config.has(_TIMES) else f"no {_TIMES}"
    found = f"{len(names)} in {source}" + (f": {shorten(names)}" if names else "")
    complete = "make sure that all files of the weights are there, or "
    raise CheckpointError(
        f"{said} in {config.source}: {times} embedding tables besides embed_tokens",
        found,
        f"{complete if len(names) < times else ''}set {_TIMES} to the number of extra tables "
        "these weights were trained with",
    )


def _check_order(places: list[tuple[int, str]], names: list[str], source: str) -> None:
    numbers = [number for number, _ in places]
    prefixes = {prefix for _, prefix in places}
    first = min([*numbers, 1])
    if numbers != list(range(first, first + len(numbers))) or len(prefixes) > 1:
        raise CheckpointError(
            f"the extra embedding tables of {source}, in order",
            f"indices that are not consecutive from 0 or 1 under one name: {shorten(names)}",
            "make sure that all files of the weights are there and of one checkpoint",
        )


def _check_free(taken: list[str], source: str) -> None:
    if taken:
        raise CheckpointError(
            f"the extra embedding tables of {source}",
            f"tensors that are no tables under the names of tables: {shorten(taken)}",
            "make sure that all files of the weights are of one checkpoint",
        )


def _check_shapes(spec: DecoderSpec, tables: list[LazyTensor], source: str) -> None:
    shape = (spec.backbone.vocab_size, spec.backbone.hidden_size)
    odd = [f"{t.stored_name} {list(t.shape)}" for t in tables if t.shape != shape]
    if odd:
        raise CheckpointError(
            f"extra embedding tables of [vocab_size, hidden_size] = {list(shape)} in {source}",
            f"{len(odd)} of another shape: {shorten(odd)}",
            "check that config.json belongs to these weights",
        )
