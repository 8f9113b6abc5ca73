"""Calls of our operators at given sizes: what `kernels.py` compiles and `gpu_check.py` runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, cast

from quatrain.plugins.definition import AttributeValue, Definition, DType
from quatrain.plugins.launch import Work
from quatrain.plugins.registry import load_definition

__all__ = [
    "AttentionCase",
    "Case",
    "CountedDefinition",
    "FeedForwardCase",
    "RouterCase",
    "list_realistic_cases",
    "make_definition",
]

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """Queries of `tokens` tokens against caches of `capacity`, of which `live` are filled."""

    operator: ClassVar[str] = "StreamFactorizedAttention"

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    live: int
    capacity: int
    tokens: int = 1
    streams: int = 1
    window: int = 0
    batch: int = 1

    @property
    def attributes(self) -> Mapping[str, AttributeValue]:
        """Of the node."""
        return {"scale": self.head_dim**-0.5, "window": self.window}

    def list_inputs(self, dtype: DType) -> list[tuple[DType, Shape]]:
        """Type and shape of each."""
        cache = (self.batch, self.streams * self.kv_heads, self.capacity, self.head_dim)
        query = (self.batch, self.streams * self.heads, self.tokens, self.head_dim)
        return [
            (dtype, query),
            (dtype, cache),
            (dtype, cache),
            ("int64", (self.batch, self.tokens)),
            ("bool", (self.batch, 1, self.tokens, self.live)),
        ]


@dataclass(frozen=True, slots=True)
class FeedForwardCase:
    """`rows` rows through a bank-top-k network."""

    operator: ClassVar[str] = "BankTopKFeedForward"

    name: str
    rows: int
    hidden: int
    inner: int
    rank: int
    bank_size: int = 64
    top_k: int = 16
    gate_mode: Literal["sigmoid", "hard", "silu"] = "sigmoid"
    predictor_activation: Literal["none", "relu", "silu"] = "none"
    is_exact: bool = False
    """Whether its logits are small integers, which tie often and are exact in any order."""

    @property
    def attributes(self) -> Mapping[str, AttributeValue]:
        """Of the node."""
        return {
            "bank_size": self.bank_size,
            "top_k": self.top_k,
            "gate_mode": self.gate_mode,
            "predictor_activation": self.predictor_activation,
        }

    def list_inputs(self, dtype: DType) -> list[tuple[DType, Shape]]:
        """Type and shape of each."""
        wide = (self.inner, self.hidden)
        shapes: list[Shape] = [(1, self.rows, self.hidden), (self.rank, self.hidden)]
        shapes += [(self.inner, self.rank), wide, wide, wide]
        return [(dtype, shape) for shape in shapes]


@dataclass(frozen=True, slots=True)
class RouterCase:
    """`rows` states past an exit."""

    operator: ClassVar[str] = "ExitRouter"

    name: str
    rows: int
    hidden: int
    inner: int
    router: int
    num_blocks: int = 1
    temperature: float = 1.0

    @property
    def attributes(self) -> Mapping[str, AttributeValue]:
        """Of the node."""
        return {"epsilon": 1e-6, "temperature": self.temperature}

    def list_inputs(self, dtype: DType) -> list[tuple[DType, Shape]]:
        """Type and shape of each."""
        shapes: list[Shape] = [(1, self.rows, self.hidden), (self.hidden,)]
        for j in range(self.num_blocks):
            width = self.router if j else self.hidden
            shapes += [(self.inner, width), (self.inner,), (self.router, self.inner)]
            shapes += [(self.router,)]
        shapes += [(self.router,), (2, self.router), (2,)]
        return [(dtype, shape) for shape in shapes]


Case = AttentionCase | FeedForwardCase | RouterCase


class CountedDefinition(Definition, Protocol):
    """A definition that knows what its calls take."""

    def count_work(self, dtypes: Sequence[DType], shapes: Sequence[Shape]) -> Work:
        """What one call must do at least."""
        ...


def make_definition(case: Case) -> CountedDefinition:
    """The plugin's side of it."""
    return cast(CountedDefinition, load_definition(case.operator)(**case.attributes))


def list_realistic_cases() -> list[Case]:
    """Decoding and prefill of a model like SmolLM2-135M and of one with 8 B parameters.

    The 8 B model has Qwen3-8B's sizes and the predictor rank of arXiv 2606.10722; the N-vium
    routers are those of the sample, of the paper's 24 x 768 model, and one of the same proportions
    for a hidden size of 4096.
    """
    small = {"heads": 9, "kv_heads": 3, "head_dim": 64}
    large = {"heads": 32, "kv_heads": 8, "head_dim": 128}
    short, long = {"live": 2048, "capacity": 2048}, {"live": 32768, "capacity": 32768}
    return [
        AttentionCase("135M, decode, 2k", **small, **short),
        AttentionCase("135M, n=4, decode, 2k", **small, **short, streams=4),
        AttentionCase("8B, decode, 2k", **large, **short),
        AttentionCase("8B, decode, 32k", **large, **long),
        AttentionCase("8B, n=4, decode, 2k", **large, **short, streams=4),
        AttentionCase("8B, n=4, decode, 32k", **large, **long, streams=4),
        AttentionCase("8B, decode, 2k of 32k", **large, live=2048, capacity=32768),
        AttentionCase("8B, prefill of 2k", **large, **short, tokens=2048),
        FeedForwardCase("135M, 1 row", rows=1, hidden=576, inner=1536, rank=72),
        FeedForwardCase("8B, 1 row", rows=1, hidden=4096, inner=12288, rank=448),
        FeedForwardCase("8B, 4 rows", rows=4, hidden=4096, inner=12288, rank=448),
        FeedForwardCase("8B, 256 rows", rows=256, hidden=4096, inner=12288, rank=448),
        RouterCase("sample, 1 row", rows=1, hidden=96, inner=32, router=96),
        RouterCase("24 x 768, 1 row", rows=1, hidden=768, inner=512, router=768),
        RouterCase("8B, 1 row", rows=1, hidden=4096, inner=2736, router=4096),
        RouterCase("8B, 64 rows", rows=64, hidden=4096, inner=2736, router=4096),
    ]
