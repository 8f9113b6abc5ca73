"""What an export would write and what running it would take, before anything is written."""

from dataclasses import dataclass

from quatrain.exporter.checkpoint.checkpoint import Checkpoint
from quatrain.exporter.decoder.head_weights import head_names
from quatrain.exporter.options import ExportOptions

__all__ = ["ExportPlan", "make_plan"]

_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


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
    backbone = spec.backbone
    parameters = sum(tensor.size for tensor in checkpoint.tensors.values())
    per_token = 2 * backbone.num_hidden_layers * backbone.num_key_value_heads * backbone.head_dim
    per_token *= _ITEM_BYTES[options.dtype]
    graphs = ["decoder"]
    if spec.exits is not None:
        graphs = [f"segment_{k}" for k in range(spec.exits.num_exits)]
        graphs += dict.fromkeys(head_names(spec))
    return ExportPlan(
        family=spec.family,
        parameters=parameters,
        weight_bytes=sum(tensor.nbytes for tensor in checkpoint.tensors.values()),
        dtype=options.dtype,
        max_seq_len=limits.max_seq_len,
        max_batch=limits.max_batch,
        prefill_chunk=limits.prefill_chunk,
        max_deferred=limits.max_deferred,
        graphs=graphs,
        targets=list(options.targets),
        kv_bytes_per_token=per_token,
        kv_bytes_at_limit=per_token * options.capacity * limits.max_batch,
        cpu_weight_bytes=parameters * 4,
        self_test=options.self_test,
    )
