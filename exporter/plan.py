"""What an export would write and what running it would take, before anything is written."""

from dataclasses import dataclass

from quatrain.exporter.checkpoint.checkpoint import Checkpoint
from quatrain.exporter.decoder.graph_names import list_graphs
from quatrain.exporter.options import ExportOptions
from quatrain.runtime.kv_cache import ITEM_BYTES

__all__ = ["ExportPlan", "make_plan"]


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """Sizes in bytes; the cache of one token in the compute type of the engines (on a CPU it is
    float32), and that of a full batch at the limit."""

    family: str
    parameters: int
    weight_bytes: int
    dtype: str
    max_seq_len: int
    max_batch: int
    prefill_chunk: int
    max_deferred: int
    graphs: list[str]
    targets: list[str]
    kv_bytes_per_token: int
    kv_bytes_at_limit: int
    cpu_weight_bytes: int
    self_test: bool


def make_plan(checkpoint: Checkpoint, options: ExportOptions) -> ExportPlan:
    """Arithmetic only: nothing is read or written."""
    spec, limits = checkpoint.spec, options.limits
    parameters = sum(tensor.size for tensor in checkpoint.tensors.values())
    per_token = spec.backbone.cache_elements_per_token * ITEM_BYTES[options.dtype]
    return ExportPlan(
        family=spec.family,
        parameters=parameters,
        weight_bytes=sum(tensor.nbytes for tensor in checkpoint.tensors.values()),
        dtype=options.dtype,
        max_seq_len=limits.max_seq_len,
        max_batch=limits.max_batch,
        prefill_chunk=limits.prefill_chunk,
        max_deferred=limits.max_deferred,
        graphs=list_graphs(spec),
        targets=list(options.targets),
        kv_bytes_per_token=per_token,
        kv_bytes_at_limit=per_token * options.capacity * limits.max_batch,
        cpu_weight_bytes=parameters * 4,
        self_test=options.self_test,
    )
