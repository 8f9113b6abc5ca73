"""What `gpu_check.py` compares with the references: odd sizes, ties, windows, several types."""

from collections.abc import Sequence

from benchmarks._kernel_cases import (
    AttentionCase,
    Case,
    FeedForwardCase,
    RouterCase,
    list_realistic_cases,
)
from quatrain.plugins.definition import DType

__all__ = ["list_right_cases"]

# The realistic ones are bfloat16. Compiling is what takes the time.
_SMALL_DTYPES: tuple[DType, ...] = ("float32", "float16")
# In float32 there is no kernel for it.
_LARGE_HEAD = AttentionCase("head size 256", 4, 1, 256, live=700, capacity=700)
# NumPy takes minutes for these; they are compared with PyTorch where they are timed.
_NOT_FOR_NUMPY = {"8B, n=4, decode, 32k", "8B, prefill of 2k"}


def list_right_cases(*, tiny: bool) -> list[tuple[Case, DType]]:
    """The cases, each with a type.

    Args:
        tiny: Few and small ones, for Triton's interpreter.
    """
    if tiny:
        return [(case, "float16") for case in _list_tiny_cases()]
    small = [
        (case, dtype)
        for case in _list_small_cases()
        for dtype in _SMALL_DTYPES
        if dtype != "float32" or case != _LARGE_HEAD
    ]
    realistic: Sequence[Case] = [
        case for case in list_realistic_cases() if case.name not in _NOT_FOR_NUMPY
    ]
    return [*small, *((case, "bfloat16") for case in realistic)]


def _list_tiny_cases() -> list[Case]:
    narrow = {"heads": 4, "kv_heads": 2, "head_dim": 16}
    return [
        AttentionCase("live 1", **narrow, live=1, capacity=8),
        AttentionCase("two rows, window", **narrow, live=40, capacity=64, window=7, batch=2),
        AttentionCase("9 tokens", **narrow, live=33, capacity=64, tokens=9, streams=2),
        FeedForwardCase("1 row", rows=1, hidden=32, inner=128, rank=16),
        FeedForwardCase("ties", rows=2, hidden=32, inner=128, rank=16, is_exact=True),
        RouterCase("1 row", rows=1, hidden=40, inner=24, router=36),
        RouterCase("2 blocks", rows=3, hidden=40, inner=24, router=36, num_blocks=2),
    ]


def _list_small_cases() -> list[Case]:
    group = {"heads": 9, "kv_heads": 3, "head_dim": 64}
    return [
        AttentionCase("live 1", **group, live=1, capacity=512),
        AttentionCase("4 rows of any length", **group, live=900, capacity=1024, batch=4),
        AttentionCase("n=8, 3 rows", 4, 2, 64, live=333, capacity=512, streams=8, batch=3),
        AttentionCase("head size 80", 10, 2, 80, live=257, capacity=512, batch=2),
        _LARGE_HEAD,
        AttentionCase("window 100", **group, live=900, capacity=1024, window=100, batch=2),
        AttentionCase("5 tokens", **group, live=500, capacity=512, tokens=5, batch=2),
        AttentionCase("prefill of 200", **group, live=200, capacity=512, tokens=200),
        AttentionCase(
            "97 tokens, window 33", **group, live=400, capacity=512, tokens=97, window=33
        ),
        FeedForwardCase("1 row", rows=1, hidden=576, inner=1536, rank=72),
        FeedForwardCase("ties, 1 row", rows=1, hidden=576, inner=1536, rank=72, is_exact=True),
        FeedForwardCase("ties, 5 rows", rows=5, hidden=576, inner=1536, rank=72, is_exact=True),
        FeedForwardCase("ties, 70 rows", rows=70, hidden=96, inner=256, rank=24, is_exact=True),
        FeedForwardCase(
            "silu, banks of 32",
            rows=1,
            hidden=96,
            inner=256,
            rank=24,
            bank_size=32,
            top_k=8,
            gate_mode="silu",
            predictor_activation="relu",
        ),
        FeedForwardCase(
            "hard, banks of 128",
            rows=3,
            hidden=256,
            inner=512,
            rank=40,
            bank_size=128,
            top_k=32,
            gate_mode="hard",
            predictor_activation="silu",
        ),
        RouterCase("1 row", rows=1, hidden=96, inner=32, router=96),
        RouterCase("70 rows", rows=70, hidden=96, inner=32, router=96, temperature=0.6),
        RouterCase("odd sizes", rows=3, hidden=173, inner=31, router=57, num_blocks=2),
        RouterCase("4 blocks, 1 row", rows=1, hidden=768, inner=512, router=768, num_blocks=4),
        RouterCase("2 blocks, 33 rows", rows=33, hidden=768, inner=344, router=512, num_blocks=2),
    ]
