"""Shapes of our operators, drawn at random: bounds for a build, and calls within them."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from quatrain.plugins.bank_topk_ffn.plugin import BankTopKFeedForwardPlugin
from quatrain.plugins.definition import Definition, DType, TensorFacts
from quatrain.plugins.exit_router.plugin import ExitRouterPlugin
from quatrain.plugins.stream_attention.plugin import StreamFactorizedAttentionPlugin

__all__ = ["SAMPLERS", "Sample"]

Shapes = list[tuple[int, ...]]
DTYPES: tuple[DType, ...] = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Sample:
    """A definition, the bounds of a build, and the shapes of some calls."""

    definition: Definition
    facts: list[TensorFacts]
    calls: list[Shapes]


def sample(
    rng: Random, definition: Definition, dtypes: list[DType], make: "Make", capacity: int = 1
) -> Sample:
    """Bounds at which `make` is largest, and calls: the smallest, the largest, and some between."""
    most = {"batch": rng.choice([1, 4]), "rows": rng.choice([1, 9, 512]), "length": capacity}
    largest, probe = make(**most), make(batch=-1, rows=-1, length=-1)
    facts = [
        TensorFacts(dtype, shape, high)
        for dtype, shape, high in zip(dtypes, probe, largest, strict=True)
    ]
    calls = [make(batch=1, rows=1, length=1), largest]
    for _ in range(30):
        calls.append(make(**{name: rng.randint(1, high) for name, high in most.items()}))
    return Sample(definition, facts, calls)


Make = Callable[..., Shapes]


def sample_attention(rng: Random) -> Sample:
    streams, kv_heads, group = rng.choice([1, 4]), rng.choice([1, 3]), rng.choice([1, 4, 7])
    dtype, capacity = rng.choice(DTYPES), rng.choice([48, 4096])
    # In fp32, tiles of wider heads do not fit.
    dim = rng.choice([16, 64, 80, 128] if dtype == "float32" else [16, 64, 80, 128, 256])

    def make(batch: int, rows: int, length: int) -> Shapes:
        cache = (batch, streams * kv_heads, capacity, dim)
        query = (batch, streams * kv_heads * group, rows, dim)
        return [query, cache, cache, (batch, rows), (batch, 1, rows, length)]

    definition = StreamFactorizedAttentionPlugin(scale=0.125, window=rng.choice([0, 32]))
    return sample(rng, definition, [dtype, dtype, dtype, "int64", "bool"], make, capacity)


def sample_feed_forward(rng: Random) -> Sample:
    hidden, rank, bank = rng.choice([64, 576]), rng.choice([16, 144]), rng.choice([32, 64, 128])
    inner = bank * rng.choice([2, 24])

    def make(batch: int, rows: int, length: int) -> Shapes:
        weights = [(rank, hidden), (inner, rank), (inner, hidden), (inner, hidden), (inner, hidden)]
        return [(batch, rows, hidden), *weights]

    definition = BankTopKFeedForwardPlugin(
        bank_size=bank,
        top_k=rng.choice([1, 16]),
        gate_mode=rng.choice(["sigmoid", "hard", "silu"]),
        predictor_activation=rng.choice(["none", "relu"]),
    )
    return sample(rng, definition, [rng.choice(DTYPES)] * 6, make)


def sample_router(rng: Random) -> Sample:
    hidden, inner, router, blocks = rng.choice([64, 576]), 128, 96, rng.choice([1, 2])

    def make(batch: int, rows: int, length: int) -> Shapes:
        shapes: Shapes = [(batch, rows, hidden), (hidden,)]
        for block in range(blocks):
            width = router if block else hidden
            shapes += [(inner, width), (inner,), (router, inner), (router,)]
        return [*shapes, (router,), (2, router), (2,)]

    definition = ExitRouterPlugin(epsilon=1e-5, temperature=1.5)
    return sample(rng, definition, [rng.choice(DTYPES)] * (5 + 4 * blocks), make)


SAMPLERS: dict[str, Callable[[Random], Sample]] = {
    "StreamFactorizedAttention": sample_attention,
    "BankTopKFeedForward": sample_feed_forward,
    "ExitRouter": sample_router,
}
