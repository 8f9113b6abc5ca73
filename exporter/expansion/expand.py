"""Checkpoint of n streams in, checkpoint of more streams out."""

from dataclasses import dataclass, replace
from pathlib import Path

from quatrain.exporter.bundle import WeightsMode
from quatrain.exporter.checkpoint import Checkpoint, open_checkpoint
from quatrain.exporter.checkpoint.json_file import read_json_object
from quatrain.exporter.decoder.cache_plan import count_cache_elements
from quatrain.exporter.derivation import check_output, write_checkpoint
from quatrain.exporter.errors import ExportError
from quatrain.exporter.expansion.config import expand_config
from quatrain.exporter.expansion.layer_list import parse_layers
from quatrain.exporter.expansion.new_tables import plan_tables
from quatrain.exporter.progress import Progress, Stage
from quatrain.exporter.spec import DecoderSpec, Streams

__all__ = ["ExpansionReport", "StreamCosts", "expand_checkpoint"]

_KIND = "an expanded checkpoint"
_MAX_STREAMS = 1024  # far beyond any model, and a slip of the finger does not fill the memory
_CACHE_ITEM_BYTES = 2  # the caches of engines, in float16 or bfloat16


@dataclass(frozen=True, slots=True)
class StreamCosts:
    """What a decoder of `num_streams` takes: parameters, and bytes of one token's keys and values
    in 16-bit caches."""

    num_streams: int
    num_parameters: int
    kv_bytes_per_token: int


@dataclass(frozen=True, slots=True)
class ExpansionReport:
    """What an expansion wrote.

    `intra_stream` has an entry for each layer: whether its rows attend within their own stream.
    `new_bytes` is the size of the new tables, `weights` how the old files got there.
    """

    checkpoint: Path
    before: StreamCosts
    after: StreamCosts
    intra_stream: list[bool]
    new_tables: list[str]
    new_bytes: int
    weights: WeightsMode
    stages: list[Stage]
    warnings: list[str]


def expand_checkpoint(
    checkpoint: Path,
    output: Path,
    *,
    num_streams: int,
    intra_stream: str | None = None,
    weights: WeightsMode | None = None,
    progress: Progress | None = None,
) -> ExpansionReport:
    """Give a checkpoint more streams (Hidden Decoding, arXiv 2607.08186), whole or not at all.

    New table s is a copy of table s mod the old number of streams; nothing else changes but
    config.json. The result is where training goes on from, not a model as good as the source.

    Args:
        num_streams: Rows of a token in the new checkpoint, more than the old one has.
        intra_stream: The layers whose rows attend within their own stream: `none`, `all` or a
            list such as `0-3,5,7-9`. Default: as it is in the checkpoint (dense: none).
        weights: `link` or `copy` the weight files. Default: link where the file system allows.

    Raises:
        QuatrainError: What was asked cannot be done; nothing is left behind.
    """
    progress = progress or Progress()
    check_output(output, checkpoint, _KIND)
    with progress.stage("read checkpoint"):
        source = open_checkpoint(checkpoint)
        streams = _plan_streams(source, num_streams, intra_stream)
    tables = plan_tables(source.tensors, source.spec.num_streams, num_streams)
    for name, table in tables.items():
        progress.say(f"  {name}: {table.nbytes / 1e6:,.1f} MB of {table.stored_name}")
    config = expand_config(read_json_object(source.folder / "config.json"), streams)
    label = f"scale-seq-n{num_streams}"
    written, mode = write_checkpoint(
        source, output, config, tables, weights, progress, kind=_KIND, parts="tables", label=label
    )
    num_layers = written.spec.backbone.num_hidden_layers
    warnings = _collect_warnings(written.spec)
    for warning in warnings:
        progress.say(f"warning: {warning}")
    return ExpansionReport(
        checkpoint=Path(output),
        before=_count_costs(source),
        after=_count_costs(written),
        intra_stream=[written.spec.is_intra_stream(i) for i in range(num_layers)],
        new_tables=list(tables),
        new_bytes=sum(table.nbytes for table in tables.values()),
        weights=mode,
        stages=progress.stages,
        warnings=warnings,
    )


def _plan_streams(source: Checkpoint, num_streams: int, intra_stream: str | None) -> Streams:
    asked = f"{num_streams} streams (-n) for {source.folder}"
    if source.spec.exits is not None:
        raise ExportError(
            asked,
            "an N-vium checkpoint: its exits do not go together with Hidden Decoding's streams",
            "expand a dense checkpoint, or one that has streams already",
        )
    old = source.spec.num_streams
    if num_streams <= max(old, 1):
        raise ExportError(
            asked,
            f"it has {old}: an expansion adds streams",
            f"ask for {old + 1} or more; the paper doubles them: {2 * old}",
        )
    if num_streams > _MAX_STREAMS:
        raise ExportError(
            asked,
            f"more than {_MAX_STREAMS}, each of them with a table of its own",
            "check the number; the largest known model has 8",
        )
    streams = source.spec.streams or Streams(1)
    layers = streams.intra_stream
    if intra_stream is not None:
        layers = parse_layers(intra_stream, source.spec.backbone.num_hidden_layers)
    return replace(streams, num_streams=num_streams, intra_stream=layers)


def _collect_warnings(spec: DecoderSpec) -> list[str]:
    # Those of the new spec: a window as long as all tokens was none, but not all rows fit in it.
    windows = {
        window
        for layer in range(spec.backbone.num_hidden_layers)
        if not spec.is_intra_stream(layer) and (window := spec.backbone.window(layer)) is not None
    }
    return [
        f"a sliding window of {window} counts rows in cross-stream layers:"
        f" {window / spec.num_streams:g} tokens; if it is to see more, set"
        " sliding_window_size_layerwise in the new config.json"
        for window in sorted(windows)
    ]


def _count_costs(checkpoint: Checkpoint) -> StreamCosts:
    return StreamCosts(
        num_streams=checkpoint.spec.num_streams,
        num_parameters=sum(tensor.size for tensor in checkpoint.tensors.values()),
        kv_bytes_per_token=count_cache_elements(checkpoint.spec) * _CACHE_ITEM_BYTES,
    )
