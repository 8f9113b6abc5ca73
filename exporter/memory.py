"""What a decoder takes of memory: its weights in engines and on the host, its cache by token."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from quatrain.exporter.checkpoint.lazy_tensor import LazyTensor
from quatrain.exporter.checkpoint.names import EMBEDDINGS, feed_forward_name, stream_table_name
from quatrain.exporter.decoder.cache_plan import count_cache_elements, plan_caches
from quatrain.exporter.decoder.head_weights import head_names, head_weights
from quatrain.exporter.decoder.live_rows import list_streams, plan_live_rows
from quatrain.exporter.spec import DecoderSpec

__all__ = ["CacheBill", "EmbeddingsPlace", "WeightBill", "bill_cache", "bill_weights"]

# Where the embedding tables are: weights of the first graph, or in memory of the host.
EmbeddingsPlace = Literal["graph", "host"]


@dataclass(frozen=True, slots=True)
class WeightBill:
    """Bytes of weights, with the embedding tables in one of the two places.

    `engine_bytes` are those of all engines and `host_bytes` those of the `num_tables` tables left
    to the host, both as they are stored; a tensor counts once for each graph that holds it.
    `cpu_bytes` are those of a CPU, where the graphs' weights are float32 and the host's tables as
    they are stored. `is_table_kept` says that the first table is in an engine although the host
    has it, because it also makes the logits.
    """

    embeddings: EmbeddingsPlace
    engine_bytes: int
    host_bytes: int
    cpu_bytes: int
    num_tables: int
    is_table_kept: bool


@dataclass(frozen=True, slots=True)
class CacheBill:
    """How the bytes of a token in the cache come about.

    It is `rows_per_token` rows of `bytes_per_row` in `num_layers` layers, but one row alone in
    `num_one_row_layers` of them, where nothing reads the others.
    """

    rows_per_token: int
    bytes_per_row: int
    num_layers: int
    num_one_row_layers: int
    bytes_per_token: int


def bill_weights(spec: DecoderSpec, tensors: Mapping[str, LazyTensor]) -> list[WeightBill]:
    """Both bills: embeddings in the graph first, then on the host."""
    return [_bill_weights(spec, tensors, place) for place in get_args(EmbeddingsPlace)]


def bill_cache(spec: DecoderSpec, item_bytes: int) -> CacheBill:
    """The cache of one token in numbers of `item_bytes` bytes."""
    backbone = spec.backbone
    layers = plan_caches(spec).values()
    whole = spec.num_streams * backbone.num_key_value_heads
    row_elements = 2 * backbone.num_key_value_heads * backbone.head_dim * len(layers)
    return CacheBill(
        rows_per_token=spec.num_streams,
        bytes_per_row=row_elements * item_bytes,
        num_layers=len(layers),
        num_one_row_layers=sum(c.num_heads * c.rows_per_position < whole for c in layers),
        bytes_per_token=count_cache_elements(spec) * item_bytes,
    )


def _bill_weights(
    spec: DecoderSpec, tensors: Mapping[str, LazyTensor], place: EmbeddingsPlace
) -> WeightBill:
    on_host = [stream_table_name(s) for s in range(spec.num_streams)] if place == "host" else []
    held = _count_graphs(spec, tensors, _list_looked_up(spec) if place == "graph" else [])
    host_bytes = sum(tensors[name].nbytes for name in on_host)
    return WeightBill(
        embeddings=place,
        engine_bytes=sum(tensors[name].nbytes * count for name, count in held.items()),
        host_bytes=host_bytes,
        cpu_bytes=sum(4 * tensors[name].size * count for name, count in held.items()) + host_bytes,
        num_tables=len(on_host),
        is_table_kept=EMBEDDINGS in on_host and EMBEDDINGS in held,
    )


def _list_looked_up(spec: DecoderSpec) -> list[str]:
    """The tables that the first graph has when the host has none: of the rows that enter it."""
    entering = plan_live_rows(spec, spec.segments[0])[0].entering
    return [stream_table_name(stream) for stream in list_streams(spec.num_streams, entering)]


def _list_unused_predictors(spec: DecoderSpec) -> set[str]:
    """Those of dense layers, unless they make the gate."""
    banks = spec.feed_forward
    if banks is None or banks.predictor_rank is None or banks.gate_mode == "sigmoid":
        return set()
    parts = ("predictor.0", "predictor.1")
    return {feed_forward_name(i, part) for i in banks.dense_fallback_layers for part in parts}


def _count_graphs(spec: DecoderSpec, names: Iterable[str], tables: Iterable[str]) -> Counter[str]:
    """How many graphs hold each tensor, when these tables are in the first one."""
    heads = list(dict(zip(head_names(spec), head_weights(spec), strict=True)).values())
    all_tables = {stream_table_name(stream) for stream in range(spec.num_streams)}
    unused = all_tables | set(heads) | _list_unused_predictors(spec)
    layered = set(names) - unused | set(tables)
    if spec.exits is not None:
        return Counter(layered) + Counter(heads)
    # One graph has it all, a tied table once; a drafter has the first table and the head, too.
    drafted = set() if spec.drafter is None else set(heads) | set(tables)
    return Counter(layered | set(heads)) + Counter(drafted)
