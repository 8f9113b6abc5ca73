"""What an export would write and what running it would take, before anything is written."""

from dataclasses import dataclass

from quatrain.exporter.checkpoint.checkpoint import Checkpoint
from quatrain.exporter.decoder.graph_names import list_graphs
from quatrain.exporter.feed_forward_bill import FeedForwardBill, bill_feed_forward
from quatrain.exporter.memory import (
    CacheBill,
    EmbeddingsPlace,
    WeightBill,
    bill_cache,
    bill_weights,
)
from quatrain.exporter.options import ExportOptions
from quatrain.exporter.quantization import WeightKind, count_packed_bytes
from quatrain.exporter.spec_json import describe_spec
from quatrain.runtime.manifest import ITEM_BYTES

__all__ = ["ExportPlan", "make_plan"]


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What an export would write. All sizes are in bytes.

    `weight_bytes` is the size of the stored tensors, each once. `weights` says what engines and
    host would hold with the embeddings in either place, of which `embeddings` is the chosen one;
    `cpu_weight_bytes` is what a CPU holds there. `max_seq_len` and `prefill_chunk` count tokens.

    `kv_bytes_per_token` is the cache of one token in the compute type of the engines (on a CPU it
    is float32), which `cache` explains; `kv_bytes_at_limit` that of a full batch of the longest
    sequences, as it is set aside. `feed_forward` is that of the manifest's `spec` and
    `feed_forward_bill` what its banks save, both None for a decoder without them. `drafter` is
    that of the manifest's `spec`, None where none is exported. `unverified` says why the graphs
    will not be held to the checkpoint, None where they will. `quantize`, `group_size` and
    `head_bits` say how weights become codes and `packed_bytes` what the bundle's own weight file
    then holds; all are None where they stay as they are. `room` says what the targets have no room
    for.
    """

    family: str
    parameters: int
    weight_bytes: int
    dtype: str
    max_seq_len: int
    max_batch: int
    prefill_chunk: int
    max_deferred: int
    max_draft: int
    graphs: list[str]
    targets: list[str]
    room: str | None
    kv_bytes_per_token: int
    kv_bytes_at_limit: int
    cpu_weight_bytes: int
    self_test: bool
    unverified: str | None
    quantize: WeightKind | None
    group_size: int | None
    head_bits: int | None
    packed_bytes: int | None
    embeddings: EmbeddingsPlace
    weights: list[WeightBill]
    cache: CacheBill
    feed_forward: object
    feed_forward_bill: FeedForwardBill | None
    drafter: object


def make_plan(
    checkpoint: Checkpoint, options: ExportOptions, room: str | None = None
) -> ExportPlan:
    """Arithmetic only: nothing is read or written; `room` is what `clip_to_targets` says."""
    spec, limits, scheme = checkpoint.spec, options.limits, options.scheme
    facts = describe_spec(spec)
    bills = bill_weights(spec, checkpoint.tensors)
    cache = bill_cache(spec, ITEM_BYTES[options.dtype])
    return ExportPlan(
        family=spec.family,
        parameters=sum(tensor.size for tensor in checkpoint.tensors.values()),
        weight_bytes=sum(tensor.nbytes for tensor in checkpoint.tensors.values()),
        dtype=options.dtype,
        max_seq_len=limits.max_seq_len,
        max_batch=limits.max_batch,
        prefill_chunk=limits.prefill_chunk,
        max_deferred=limits.max_deferred,
        max_draft=limits.max_draft,
        graphs=list_graphs(spec),
        targets=list(options.targets),
        room=room,
        kv_bytes_per_token=cache.bytes_per_token,
        kv_bytes_at_limit=cache.bytes_per_token * options.capacity * limits.max_batch,
        cpu_weight_bytes=next(b.cpu_bytes for b in bills if b.embeddings == options.embeddings),
        self_test=options.self_test,
        unverified=options.unverified,
        quantize=None if scheme is None else scheme.kind,
        group_size=None if scheme is None else scheme.group_size,
        head_bits=None if scheme is None else scheme.bits_of_heads,
        packed_bytes=_count_packed(checkpoint, options),
        embeddings=options.embeddings,
        weights=bills,
        cache=cache,
        feed_forward=facts["feed_forward"],
        feed_forward_bill=bill_feed_forward(spec, checkpoint.tensors),
        drafter=facts["drafter"],
    )


def _count_packed(checkpoint: Checkpoint, options: ExportOptions) -> int | None:
    if options.scheme is None:
        return None
    return count_packed_bytes(checkpoint, options.scheme, options.dtype)
