"""What a checkpoint holds, as a report."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from quatrain.exporter.checkpoint import Checkpoint, LazyTensor, open_checkpoint
from quatrain.exporter.checkpoint.finite import BadWeight, find_bad_weights
from quatrain.exporter.feed_forward_bill import FeedForwardBill, bill_feed_forward
from quatrain.exporter.memory import CacheBill, WeightBill, bill_cache, bill_weights
from quatrain.exporter.progress import Progress
from quatrain.exporter.spec_json import describe_spec

__all__ = ["Inspection", "WeightFile", "inspect_checkpoint"]


@dataclass(frozen=True, slots=True)
class WeightFile:
    """A file with weights and its size on disk."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """A checkpoint in plain data; `dataclasses.asdict` makes it JSON-able.

    `num_parameters` and `weight_bytes` count tied tensors once and leave out the leftovers.
    `dtype_bytes` is the number of weight bytes stored in each dtype. `kv_bytes_per_token` is the
    size of one token's keys and values in 16-bit caches, which `cache` explains; `weights` says
    what engines and host would hold with the embeddings in the graph, and with them on the host.
    `feed_forward_bill` is what banks save of its feed-forward, None for a decoder without them.
    `bad_weights` is None where the weights were not read.
    """

    folder: str
    family: str
    spec: dict[str, object]
    num_parameters: int
    weight_bytes: int
    stored_dtype: str
    dtype_bytes: dict[str, int]
    files: list[WeightFile]
    leftovers: list[str]
    tokenizer_files: list[str]
    eos_token_ids: list[int]
    bos_token_id: int | None
    add_bos_token: bool
    kv_bytes_per_token: int
    weights: list[WeightBill]
    cache: CacheBill
    feed_forward_bill: FeedForwardBill | None
    settings_file: str | None
    bad_weights: list[BadWeight] | None


def inspect_checkpoint(
    path: Path, *, check_weights: bool = False, progress: Progress | None = None
) -> Inspection:
    """Open a checkpoint and describe it.

    Args:
        check_weights: Also read every weight and list those that are NaN or infinite.

    Raises:
        CheckpointError: As `open_checkpoint`.
        SpecError: As `open_checkpoint`.
    """
    checkpoint = open_checkpoint(path)
    tensors = checkpoint.tensors.values()
    cache = bill_cache(checkpoint.spec, item_bytes=2)
    return Inspection(
        folder=str(checkpoint.folder),
        family=checkpoint.spec.family,
        spec=describe_spec(checkpoint.spec),
        num_parameters=sum(tensor.size for tensor in tensors),
        weight_bytes=sum(tensor.nbytes for tensor in tensors),
        stored_dtype=checkpoint.stored_dtype,
        dtype_bytes=_count_dtype_bytes(tensors),
        files=_list_files(checkpoint),
        leftovers=list(checkpoint.leftovers),
        tokenizer_files=[file.name for file in checkpoint.tokenizer_files],
        eos_token_ids=list(checkpoint.eos_token_ids),
        bos_token_id=checkpoint.bos_token_id,
        add_bos_token=checkpoint.add_bos_token,
        kv_bytes_per_token=cache.bytes_per_token,
        weights=bill_weights(checkpoint.spec, checkpoint.tensors),
        cache=cache,
        feed_forward_bill=bill_feed_forward(checkpoint.spec, checkpoint.tensors),
        settings_file=None if checkpoint.settings_file is None else str(checkpoint.settings_file),
        bad_weights=find_bad_weights(checkpoint, progress) if check_weights else None,
    )


def _list_files(checkpoint: Checkpoint) -> list[WeightFile]:
    return [
        WeightFile(str(file.relative_to(checkpoint.folder)), file.stat().st_size)
        for file in checkpoint.files
    ]


def _count_dtype_bytes(tensors: Iterable[LazyTensor]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for tensor in tensors:
        counts[tensor.dtype] += tensor.nbytes
    return dict(sorted(counts.items()))
