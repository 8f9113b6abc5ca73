"""Whether a GPU has what a model needs, and how fast its memory lets it decode."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from quatrain.exporter.capacity.needs import GraphNeeds, Needs
from quatrain.exporter.targets import Memory, Target

__all__ = [
    "RESERVED_BYTES",
    "StepShares",
    "TargetFit",
    "count_needed",
    "fit_target",
    "share_steps",
]

# What a CUDA context, TensorRT and its kernels take beside a model. A guess: we have no GPU.
RESERVED_BYTES = 700_000_000
_SHORT = 128


@dataclass(frozen=True, slots=True)
class StepShares:
    """How often each graph is called for one token: 1 for a plain decoder.

    With exits a segment is called for the tokens that go so far; with a drafter the decoder once
    for all the tokens of a round.
    """

    calls: dict[str, float]


@dataclass(frozen=True, slots=True)
class TargetFit:
    """A GPU with one of its memory sizes.

    Args:
        needed_bytes: Weights, caches at the limits, activations and what is reserved.
        max_seq_len_alone: Tokens of a sequence that it has room for; `max_seq_len_in_batch`: of
            each in a batch of the limit; 0: of none. Either is what the model could be exported
            for, never more than `Needs.longest`, however much memory is left.
        max_batch: Sequences of the limit's length that it could be exported for.
        floor_ms_short: Milliseconds that reading weights and a cache of 128 tokens (or the limit)
            takes for one token at the memory's full bandwidth: no software decodes one sequence
            faster.
        floor_ms_limit: The same behind the longest sequence.
        floor_ms_sparse: Like `floor_ms_short`, where only active channels are read; None for a
            model that always runs them all.
    """

    target: str
    memory_gib: int
    bandwidth_gb_s: int
    needed_bytes: int
    fits: bool
    max_seq_len_alone: int
    max_seq_len_in_batch: int
    max_batch: int
    floor_ms_short: float
    floor_ms_limit: float
    floor_ms_sparse: float | None


def share_steps(
    needs: Needs,
    exit_shares: Sequence[float] | None = None,
    draft: int = 0,
    accepted_per_step: float = 1.0,
) -> StepShares:
    """How often each graph is called for a token; without exit shares every token goes all the way.

    The graphs of an exit's head are one to a head or one for all.
    """
    segments = [graph for graph in needs.graphs if graph.role == "segment"]
    shares = list(exit_shares or [0.0] * (len(segments) - 1) + [1.0])
    reached = [sum(shares[k:]) for k in range(len(segments))]
    calls = {segment.name: part for segment, part in zip(segments, reached, strict=False)}
    heads = [graph for graph in needs.graphs if graph.role == "head"]
    for k, head in enumerate(heads):
        calls[head.name] = shares[k] if len(heads) == len(segments) else 1.0 / len(heads)
    for graph in needs.graphs:
        if graph.role == "decoder":
            calls[graph.name] = 1 / accepted_per_step
        elif graph.role == "drafter":
            calls[graph.name] = draft / accepted_per_step
    return StepShares(calls)


def fit_target(needs: Needs, target: Target, memory: Memory, shares: StepShares) -> TargetFit:
    """Hold the needs against a memory size of a GPU."""
    limits, total = needs.limits, memory.gib << 30
    needed = count_needed(needs, limits.max_batch, limits.max_seq_len)
    short = min(_SHORT, limits.max_seq_len)
    bandwidth = memory.bandwidth_gb_s * 1e6  # bytes a millisecond
    longest = partial(_find_longest, needs, total)
    has_inactive = any(graph.inactive_bytes for graph in needs.graphs)
    return TargetFit(
        target=target.name,
        memory_gib=memory.gib,
        bandwidth_gb_s=memory.bandwidth_gb_s,
        needed_bytes=needed,
        fits=needed <= total,
        max_seq_len_alone=longest(1),
        max_seq_len_in_batch=longest(limits.max_batch),
        max_batch=_find_largest(lambda n: count_needed(needs, n, limits.max_seq_len) <= total),
        floor_ms_short=_count_read(needs.graphs, shares, short) / bandwidth,
        floor_ms_limit=_count_read(needs.graphs, shares, limits.max_seq_len) / bandwidth,
        floor_ms_sparse=(
            _count_read(needs.graphs, shares, short, is_sparse=True) / bandwidth
            if has_inactive
            else None
        ),
    )


def count_needed(needs: Needs, batch: int, length: int) -> int:
    """Bytes that a GPU needs for so many sequences of so many tokens."""
    capacity = (length + 8) // 8 * 8  # as `settle_options` has it
    caches = needs.cache_bytes_per_token * capacity * batch
    activations = needs.activations.count(batch, needs.limits.prefill_chunk, length)
    return needs.weight_bytes + RESERVED_BYTES + caches + activations


def _find_longest(needs: Needs, total: int, batch: int) -> int:
    """Tokens of each of so many sequences that the memory and the model have room for."""
    return min(needs.longest, _find_largest(lambda n: count_needed(needs, batch, n) <= total))


def _find_largest(is_good: Callable[[int], bool]) -> int:
    """The largest number that is good where all up to it are; 0: not even 1 is."""
    good, bad = 0, 1
    while is_good(bad):
        good, bad = bad, 2 * bad
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if is_good(middle) else (good, middle)
    return good


def _count_read(
    graphs: Sequence[GraphNeeds], shares: StepShares, length: int, *, is_sparse: bool = False
) -> float:
    """Bytes read for a token behind `length` others."""
    return sum(
        shares.calls[graph.name]
        * (
            graph.read_bytes
            - (graph.inactive_bytes if is_sparse else 0)
            + graph.cache_bytes * length
        )
        for graph in graphs
    )
