"""The shapes of attention with streams among the heads, and which of them there are kernels for."""

from collections.abc import Sequence
from dataclasses import dataclass

from quatrain.plugins.definition import DType, TensorFacts, UnsupportedError

__all__ = ["ITEM_BYTES", "AttentionShapes", "check_facts", "check_shapes", "check_types"]

ITEM_BYTES: dict[DType, int] = {"float16": 2, "bfloat16": 2, "float32": 4}
"""Of the types that there are kernels for."""

_NAMES = ("query", "key_cache", "value_cache", "position_ids", "attention_mask")
_RANKS = (4, 4, 4, 2, 4)
_MAX_HEAD_DIM: dict[DType, int] = {"float16": 256, "bfloat16": 256, "float32": 128}
# Input and axis of what has one size; the mask is not read.
_SHARED = {
    "batch rows": ((0, 0), (1, 0), (2, 0), (3, 0)),
    "tokens": ((0, 2), (3, 1)),
    "positions": ((1, 2), (2, 2)),
}
# The grid's second axis, which counts key/value heads of all batch rows.
_MAX_HEADS = 65535
_MAX_INT32 = 2**31 - 1
# The kernels multiply numbers of key tiles by numbers of splits in int32.
_MAX_CAPACITY = 2**24


@dataclass(frozen=True, slots=True)
class AttentionShapes:
    """B, n*Hkv, their query heads, T, C, L and D of a call."""

    batch: int
    kv_heads: int
    group: int
    tokens: int
    capacity: int
    length: int
    """What the mask says is live at most, within the capacity."""
    head_dim: int

    @classmethod
    def read(cls, shapes: Sequence[tuple[int, ...]]) -> "AttentionShapes":
        """From the shapes of the operator's inputs."""
        batch, query_heads, tokens, head_dim = shapes[0]
        kv_heads, capacity = shapes[1][1:3]
        length = min(shapes[4][3], capacity)
        return cls(batch, kv_heads, query_heads // kv_heads, tokens, capacity, length, head_dim)

    @property
    def heads(self) -> int:
        """Key/value heads of all batch rows."""
        return self.batch * self.kv_heads

    @property
    def rows(self) -> int:
        """Queries of a key/value head."""
        return self.group * self.tokens


def check_types(dtypes: Sequence[DType], ranks: Sequence[int]) -> None:
    """`UnsupportedError` if there is no kernel for these types, or these are no such inputs."""
    if len(dtypes) != len(_NAMES):
        raise _fail(f"{len(dtypes)} inputs, which must be {', '.join(_NAMES)}")
    for name, rank, expected in zip(_NAMES, ranks, _RANKS, strict=True):
        if rank != expected:
            raise _fail(f"{name} has {rank} axes, which must be {expected}")
    if len(set(dtypes[:3])) != 1 or dtypes[0] not in ITEM_BYTES:
        raise _fail(
            f"query, keys and values are {', '.join(dtypes[:3])}, which must be one of "
            f"{', '.join(ITEM_BYTES)} for all three"
        )
    if list(dtypes[3:]) != ["int64", "bool"]:
        raise _fail(
            f"position_ids and attention_mask are {dtypes[3]} and {dtypes[4]}, which must be "
            "int64 and bool"
        )


def check_shapes(shapes: Sequence[tuple[int, ...]]) -> None:
    """`UnsupportedError` where inputs differ in what they share: a kernel would read beyond one.

    -1 is any size.
    """
    for name, places in _SHARED.items():
        sizes = {shapes[tensor][axis] for tensor, axis in places} - {-1}
        if len(sizes) > 1:
            found = ", ".join(f"{_NAMES[tensor]} {shapes[tensor][axis]}" for tensor, axis in places)
            raise _fail(f"{found} {name}, which must be as many")


def check_facts(inputs: Sequence[TensorFacts]) -> None:
    """`UnsupportedError` if there is no kernel for inputs within these bounds."""
    check_types([fact.dtype for fact in inputs], [len(fact.shape) for fact in inputs])
    query, keys, values = (fact.shape for fact in inputs[:3])
    head_dims, heads = {query[3], keys[3], values[3]}, (query[1], keys[1], values[1])
    head_dim, most_channels = query[3], _MAX_HEAD_DIM[inputs[0].dtype]
    if len(head_dims) != 1 or not 0 < head_dim <= most_channels or head_dim % 16:
        raise _fail(
            f"head dims {query[3]}, {keys[3]} and {values[3]} of query, keys and values, which "
            f"must be one fixed multiple of 16, for {inputs[0].dtype} up to {most_channels}"
        )
    if min(heads) < 1 or heads[1] != heads[2] or heads[0] % heads[1]:
        raise _fail(
            f"{heads[0]} query heads over {heads[1]} key and {heads[2]} value heads, which must "
            "be fixed, and the former a multiple of the latter"
        )
    check_shapes([fact.shape for fact in inputs])
    most = AttentionShapes.read([fact.max_shape for fact in inputs])
    if most.heads > _MAX_HEADS:
        raise _fail(
            f"{most.heads:,} key/value heads in a batch of {most.batch}, which may be "
            f"{_MAX_HEADS:,}"
        )
    if most.capacity > _MAX_CAPACITY:
        raise _fail(f"caches of {most.capacity:,} positions, which may be {_MAX_CAPACITY:,}")
    if max(most.rows * most.head_dim, most.batch * most.tokens) > _MAX_INT32:
        raise _fail(f"{most.tokens:,} tokens of {most.group} heads each do not fit int32")


def _fail(found: str) -> UnsupportedError:
    return UnsupportedError(f"StreamFactorizedAttention: {found}")
