"""What both sides are run on: token sequences, and how they are cut into calls."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.comparison.result import CaseInfo
from quatrain.runtime.manifest import Limits, Manifest

__all__ = ["Case", "list_windows", "make_cases"]

_MAX_SEQUENCES = 3


@dataclass(frozen=True, slots=True)
class Case:
    """Sequences `rows` of the token table, each up to `lengths`, of which the first `prefill` are
    run in calls of at most `chunk` tokens and the rest one by one, all sequences together."""

    name: str
    purpose: str
    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    prefill: tuple[int, ...]
    chunk: int

    @property
    def decode_steps(self) -> int:
        """Tokens that are fed one by one."""
        return max(n - p for n, p in zip(self.lengths, self.prefill, strict=True))

    def take(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Its sequences [B, L], L the length of the longest, out of the token table."""
        return tokens[list(self.rows), : max(self.lengths)]

    def describe(self) -> CaseInfo:
        """The record of it."""
        return CaseInfo(
            self.name, list(self.lengths), list(self.prefill), self.decode_steps, self.purpose
        )


def make_cases(manifest: Manifest, num_tokens: int, decode_steps: int) -> list[Case]:
    """Three ways through sequences of `num_tokens`: a batch of unequal lengths in several calls, a
    whole sequence at once, and one that begins with a single token."""
    limits = manifest.limits
    steps = min(decode_steps, num_tokens - 1)
    size = min(limits.max_batch, _MAX_SEQUENCES)
    lengths = [max(steps + 1, num_tokens * (size - b) // size) for b in range(size)]
    prefill = [length - steps for length in lengths]
    chunk = max(1, min(limits.prefill_chunk, prefill[0] * 2 // 5))
    batch = Case(
        "batch",
        f"unequal lengths; prompts in calls of {chunk} tokens, over their boundaries;"
        f" {steps} tokens one by one",
        tuple(range(size)),
        tuple(lengths),
        tuple(prefill),
        chunk,
    )
    whole = Case(
        "whole",
        _describe_whole(manifest, num_tokens),
        (0,),
        (num_tokens,),
        (num_tokens,),
        limits.prefill_chunk,
    )
    first = Case("start", "from the first token on one by one", (size - 1,), (steps + 1,), (1,), 1)
    cases = [batch, whole, first] if steps else [whole]
    return [case for case in cases if max(case.lengths) > 0]


def list_windows(manifest: Manifest) -> list[int]:
    """The sliding windows of a bundle, in tokens (whole ones, where they count rows), ascending."""
    cache = manifest.cache
    windows = {
        -(-layer.window // (cache.rows_per_token if layer.unit == "rows" else 1))
        for layer in cache.layers
        if layer.window is not None
    }
    return sorted(windows)


def _describe_whole(manifest: Manifest, num_tokens: int) -> str:
    limits: Limits = manifest.limits
    parts = [f"{num_tokens} tokens in calls as long as the bundle allows ({limits.prefill_chunk})"]
    if num_tokens == limits.max_seq_len:
        parts.append("up to the last position there is room for")
    windows = [window for window in list_windows(manifest) if window < num_tokens]
    if windows:
        parts.append(f"across windows of {', '.join(map(str, windows))} tokens")
    return "; ".join(parts)
