"""What an export is asked to do, with its defaults settled and checked against the checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import msgspec

from quatrain.exporter.checkpoint.checkpoint import Checkpoint
from quatrain.exporter.errors import ExportError
from quatrain.exporter.memory import EmbeddingsPlace
from quatrain.exporter.quantization.scheme import Scheme, WeightKind
from quatrain.exporter.spec import DecoderSpec, DType
from quatrain.exporter.targets import find_target
from quatrain.runtime.manifest import Limits

__all__ = [
    "ExportOptions",
    "ExportRequest",
    "count_rotary_tokens",
    "replace_max_seq_len",
    "settle_options",
]

# Long enough for a chat and small enough for any card; --max-seq-len raises it.
_DEFAULT_MAX_SEQ_LEN = 4096
# Rows of a prompt run in one call: enough to fill matrix products, and short chunks spare attention
# half of what lies ahead of a token (4 streams, 512 tokens: 3.6 times the time of one stream in
# chunks of 512 rows, 4.6 times in one call; benchmarks/results.md).
_DEFAULT_PREFILL_ROWS = 512
# A graph holds its rotary tables itself, and protobuf has no messages of 2 GiB; the rest of a graph
# is far below what this leaves.
_MAX_ROTARY_BYTES = 2_000_000_000
_DEFAULT_MAX_DEFERRED = 16
_DEFAULT_MAX_DRAFT = 8
_DEFAULT_GROUP_SIZE = 32
# Above these what runs the model on the CPU would take far longer than the export.
_SELF_TEST_MAX_BYTES = 1 << 30
_VERIFY_MAX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """The arguments of `export_checkpoint` that a plan depends on; None where it is to choose.

    `max_seq_len` and `prefill_chunk` count tokens, whatever number of rows a token is.
    """

    dtype: DType | None
    max_seq_len: int | None
    max_batch: int
    prefill_chunk: int | None
    max_deferred: int | None
    targets: Sequence[str]
    self_test: bool | None
    embeddings: EmbeddingsPlace = "graph"
    dense_fallback: Sequence[int] | None = None
    drafter: bool = False
    max_draft: int | None = None
    verify: bool | None = None
    quantize: WeightKind | None = None
    group_size: int | None = None
    head_bits: int | None = None


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """A request with everything settled.

    `dtype` is the compute type of the engines; `capacity` the tokens that the static caches hold;
    `embeddings` is where the embedding tables are; `scheme` how weights are quantized (None: they
    stay as they are stored); `unverified` says why the graphs are not held to the checkpoint
    (None: they are).
    """

    dtype: DType
    limits: Limits
    capacity: int
    targets: tuple[str, ...]
    self_test: bool
    embeddings: EmbeddingsPlace = "graph"
    unverified: str | None = None
    scheme: Scheme | None = None


def settle_options(checkpoint: Checkpoint, request: ExportRequest) -> ExportOptions:
    """Fill in what was left open.

    By default engines compute in bfloat16 where the weights are stored so, else in float16.

    Raises:
        ExportError: A size that is below 1, more positions than the checkpoint knows or a graph
            has room for, no place for embeddings, or a setting of what this export does not have.
        BuildError: There is no target of that name.
    """
    _check_place(request.embeddings)
    _refuse_idle_limits(checkpoint, request)
    limits = _settle_limits(checkpoint.spec, request)
    _check_rotary_tables(checkpoint.spec, limits.max_seq_len)
    for target in request.targets:
        find_target(target)
    num_bytes = sum(tensor.nbytes for tensor in checkpoint.tensors.values())
    self_test = request.self_test
    if self_test is None:
        self_test = num_bytes <= _SELF_TEST_MAX_BYTES
    default_dtype: DType = "bfloat16" if checkpoint.stored_dtype == "bfloat16" else "float16"
    return ExportOptions(
        dtype=request.dtype or default_dtype,
        limits=limits,
        capacity=_fit_capacity(limits.max_seq_len),
        targets=tuple(request.targets),
        self_test=self_test,
        embeddings=request.embeddings,
        unverified=_excuse_verification(request, num_bytes),
        scheme=_settle_scheme(request),
    )


def _settle_scheme(request: ExportRequest) -> Scheme | None:
    group_size = request.group_size
    if request.quantize is not None:
        size = _DEFAULT_GROUP_SIZE if group_size is None else group_size
        return Scheme(request.quantize, size, request.head_bits)
    for flag, value in (("--group-size", group_size), ("--head-bits", request.head_bits)):
        if value is not None:
            raise ExportError(
                f"{flag} {value}",
                "weights are not quantized, so there are no codes that it could be about",
                f"choose --quantize int8 or int4 as well, or leave {flag} out",
            )
    return None


def _refuse_idle_limits(checkpoint: Checkpoint, request: ExportRequest) -> None:
    """Refuse limits of exits and of a drafter where there are none."""
    family, absence = checkpoint.spec.family, checkpoint.drafter_absence
    if request.max_deferred is not None and checkpoint.spec.exits is None:
        raise ExportError(
            f"--max-deferred {request.max_deferred}",
            f"this model ({family}) has no exits, so nothing is left for later",
            "leave --max-deferred out, or use a checkpoint with exits (N-vium)",
        )
    if request.max_draft is not None and checkpoint.spec.drafter is None:
        found, fix = "the drafter is left out", "add --drafter, or leave --max-draft out"
        if absence is not None:
            found = f"this model ({family}) has no drafter: {absence}"
            fix = "leave --max-draft out, or use a HiLP or NextLat checkpoint with --drafter"
        raise ExportError(f"--max-draft {request.max_draft}", found, fix)


def replace_max_seq_len(options: ExportOptions, max_seq_len: int) -> ExportOptions:
    """The options for shorter sequences."""
    old = options.limits
    limits = msgspec.structs.replace(
        old,
        max_seq_len=max_seq_len,
        prefill_chunk=min(old.prefill_chunk, max_seq_len),
        max_deferred=min(old.max_deferred, max_seq_len),
        max_draft=max(1, min(old.max_draft, max_seq_len - 1)),
    )
    return replace(options, limits=limits, capacity=_fit_capacity(max_seq_len))


def _fit_capacity(max_seq_len: int) -> int:
    """One token of padding at least, and rows that start on 16-byte boundaries."""
    return (max_seq_len + 8) // 8 * 8


def _excuse_verification(request: ExportRequest, num_bytes: int) -> str | None:
    if request.verify is None and num_bytes > _VERIFY_MAX_BYTES:
        return "the weights are larger than 1 GiB (--verify asks for it)"
    return "not asked for (--no-verify)" if request.verify is False else None


def _check_place(embeddings: str) -> None:
    places = get_args(EmbeddingsPlace)
    if embeddings not in places:
        raise ExportError(
            f"embeddings in the {embeddings} (--embeddings)",
            "there is no such place for them",
            f"choose one of {', '.join(places)}",
        )


def count_rotary_tokens(head_dim: int, rows_per_token: int) -> int:
    """The most tokens whose rotary tables, float32 [rows, head_dim / 2] twice, a graph can hold."""
    return _MAX_ROTARY_BYTES // (4 * head_dim * rows_per_token)


def _check_rotary_tables(spec: DecoderSpec, max_seq_len: int) -> None:
    """Refuse tables that no ONNX file can hold."""
    token_bytes = 4 * spec.backbone.head_dim * spec.num_streams
    most = count_rotary_tokens(spec.backbone.head_dim, spec.num_streams)
    if max_seq_len > most:
        raise ExportError(
            f"sequences of {max_seq_len} tokens (--max-seq-len)",
            f"their rotary tables would take {max_seq_len * token_bytes / 1e9:.1f} GB"
            f" ({spec.num_streams} rows a token), and an ONNX file holds 2 GB",
            f"ask for {most} or less",
        )


def _settle_limits(spec: DecoderSpec, request: ExportRequest) -> Limits:
    positions = spec.backbone.max_position_embeddings
    prefill_chunk = request.prefill_chunk
    if prefill_chunk is None:
        prefill_chunk = max(1, _DEFAULT_PREFILL_ROWS // spec.num_streams)
    max_seq_len = request.max_seq_len
    if max_seq_len is None:
        max_seq_len = min(positions, _DEFAULT_MAX_SEQ_LEN)
    if max_seq_len > positions:
        raise ExportError(
            f"sequences of {max_seq_len} tokens (--max-seq-len)",
            f"the checkpoint knows {positions} positions (max_position_embeddings)",
            f"ask for {positions} or less",
        )
    max_deferred = _DEFAULT_MAX_DEFERRED if request.max_deferred is None else request.max_deferred
    max_draft = _DEFAULT_MAX_DRAFT if request.max_draft is None else request.max_draft
    sizes = {
        "--max-seq-len": max_seq_len,
        "--max-batch": request.max_batch,
        "--prefill-chunk": prefill_chunk,
        "--max-deferred": max_deferred,
        "--max-draft": max_draft,
    }
    for flag, value in sizes.items():
        if value < 1:
            raise ExportError(f"{flag} {value}", "it must be at least 1", f"give a larger {flag}")
    return Limits(
        max_seq_len=max_seq_len,
        max_batch=request.max_batch,
        prefill_chunk=min(prefill_chunk, max_seq_len),
        max_deferred=min(max_deferred, max_seq_len),
        # A round has one row more than guesses.
        max_draft=max(1, min(max_draft, max_seq_len - 1)),
    )
