"""What a sparsification is asked to do, with its defaults settled and checked."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from quatrain.exporter.checkpoint import Checkpoint
from quatrain.exporter.errors import ExportError
from quatrain.exporter.spec import BankTopK, DecoderSpec, GateMode

__all__ = ["Method", "SparsifyRequest", "choose_rank", "settle_banks"]

Method = Literal["predictor", "dense-topk"]

# The rank of the paper, 448, for its 14336 channels; to what the matrix units of GPUs like.
_CHANNELS_PER_RANK = 32
_RANK_STEP = 8


@dataclass(frozen=True, slots=True)
class SparsifyRequest:
    """The arguments of `sparsify_checkpoint` that say what is made; None where it is to choose."""

    method: Method
    bank_size: int
    top_k: int
    rank: int | None
    gate_mode: GateMode | None
    text: Path | None
    tokens: int | None
    window: int | None
    work: Path | None


def settle_banks(source: Checkpoint, request: SparsifyRequest) -> DecoderSpec:
    """The decoder that is to be made.

    Raises:
        ExportError: The checkpoint or the request rules it out.
        SpecError: No decoder of this size can have such banks.
    """
    _check_source(source)
    _check_request(request)
    backbone = source.spec.backbone
    if request.bank_size < 1 or backbone.intermediate_size % request.bank_size:
        fitting = [n for n in range(2, 257) if backbone.intermediate_size % n == 0]
        fitting = fitting or [backbone.intermediate_size]
        raise ExportError(
            f"banks of {request.bank_size} channels (--bank-size)",
            f"the feed-forward networks of {source.folder} have {backbone.intermediate_size}, which"
            " is not a whole number of such banks",
            f"choose one of {', '.join(map(str, fitting))}",
        )
    if not 1 <= request.top_k <= request.bank_size:
        raise ExportError(
            f"{request.top_k} active channels (--top-k) of {request.bank_size} in a bank",
            "there must be at least 1, and no more than the bank has",
            f"choose a --top-k from 1 to {request.bank_size}",
        )
    if request.method == "dense-topk":
        banks = BankTopK(request.bank_size, request.top_k, None, "silu")
    else:
        rank = choose_rank(source, request.rank)
        gate_mode = request.gate_mode or "sigmoid"
        banks = BankTopK(request.bank_size, request.top_k, rank, gate_mode)
    return replace(source.spec, feed_forward=banks)


def choose_rank(source: Checkpoint, rank: int | None) -> int:
    """The rank asked for, or one for every 32 channels as in the paper (448 for 14336), rounded up
    to a multiple of 8; never more than d or d_i, beyond which a rank adds nothing.

    A predictor of that rank takes (1 / d_i + 1 / d) * d_i / 96 of the network's products: 4.8 % at
    the paper's d_i = 14336 and d = 4096.
    """
    backbone = source.spec.backbone
    largest = min(backbone.hidden_size, backbone.intermediate_size)
    if rank is None:
        steps = -(-backbone.intermediate_size // (_CHANNELS_PER_RANK * _RANK_STEP))
        return min(steps * _RANK_STEP, largest)
    if not 1 <= rank <= largest:
        raise ExportError(
            f"a predictor of rank {rank} (--rank)",
            f"the gate projection is {backbone.intermediate_size} by {backbone.hidden_size}, and"
            f" its rank {largest} at most",
            f"choose a rank from 1 to {largest}",
        )
    return rank


def _check_source(source: Checkpoint) -> None:
    asked = f"sparsify {source.folder}"
    if source.spec.feed_forward is not None:
        raise ExportError(
            asked,
            "its config.json has bank_topk already",
            "give the dense checkpoint it was made from",
        )
    if source.spec.backbone.mlp_bias:
        raise ExportError(
            asked,
            "its feed-forward networks have biases (mlp_bias), which the sparse ones do not know",
            "use a checkpoint without them; those of Llama, Qwen2 and Qwen3 have none",
        )


def _check_request(request: SparsifyRequest) -> None:
    if request.method not in get_args(Method):
        raise ExportError(
            f"the method {request.method!r} (--method)",
            f"there are {' and '.join(get_args(Method))}",
            "choose one of them",
        )
    if request.method == "predictor" and request.text is None:
        raise ExportError(
            "fit predictors (--method predictor)",
            "no text to fit them on",
            "give one (--text FILE), or choose --method dense-topk, which fits nothing",
        )
    if request.method == "dense-topk":
        names = ("rank", "text", "tokens", "window", "work")
        unused = [f"--{name}" for name in names if getattr(request, name) is not None]
        if request.gate_mode not in (None, "silu"):
            unused.append(f"--gate-mode {request.gate_mode}")
        if unused:
            raise ExportError(
                f"{', '.join(unused)} with --method dense-topk",
                "it has no predictor: nothing is fitted, and the gate is the backbone's own (silu)",
                "leave them out, or choose --method predictor",
            )
