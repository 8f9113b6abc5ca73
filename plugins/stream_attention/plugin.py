"""`quatrain::StreamFactorizedAttention` as a plugin: which launches for which shapes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import e, isfinite, log2
from typing import ClassVar

from quatrain.plugins.definition import (
    AttributeKind,
    AttributeValue,
    DType,
    OutputFacts,
    TensorFacts,
    UnsupportedError,
)
from quatrain.plugins.launch import WORKSPACE, KernelVariant, Launch, Pointer, Work
from quatrain.plugins.operator import OperatorName
from quatrain.plugins.stream_attention.shapes import (
    ITEM_BYTES,
    AttentionShapes,
    check_facts,
    check_shapes,
    check_types,
)
from quatrain.plugins.stream_attention.tiles import (
    Tile,
    choose_split,
    choose_tile,
    count_max_programs,
    limit_split,
    list_tiles,
    pad_head_dim,
)

__all__ = ["STREAM_FACTORIZED_ATTENTION", "StreamFactorizedAttentionPlugin"]

STREAM_FACTORIZED_ATTENTION = OperatorName("StreamFactorizedAttention")

_TRITON: dict[DType, str] = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
_NO_WINDOW = 2**31 - 1
_LARGEST_BLOCK_M = 128
_QUERY, _KEYS, _VALUES, _POSITIONS, _OUTPUT = (Pointer(tensor) for tensor in (0, 1, 2, 3, 5))


@dataclass(frozen=True, slots=True)
class StreamFactorizedAttentionPlugin:
    """One launch, or two where the keys of a tile of queries are shared among programs.

    Inputs as in `body.py`. The mask is never read: its last axis says how many positions are live
    at most, and each query's own position what it sees.
    """

    operator: ClassVar[OperatorName] = STREAM_FACTORIZED_ATTENTION
    folder: ClassVar[str] = "stream_attention"
    attributes: ClassVar[Mapping[str, tuple[AttributeKind, AttributeValue | None]]] = {
        "scale": ("float", None),
        "window": ("int", 0),
    }
    num_outputs: ClassVar[int] = 1
    output_dtypes: ClassVar[tuple[DType | int, ...]] = (0,)

    scale: float
    window: int = 0

    def __post_init__(self) -> None:
        if not isfinite(self.scale):
            raise UnsupportedError(
                f"StreamFactorizedAttention: scale {self.scale}, which must be finite"
            )
        if self.window < 0:
            raise UnsupportedError(
                f"StreamFactorizedAttention: window {self.window}, which must be a count of "
                "positions, or 0 for all"
            )

    def describe_outputs(self, dtypes: Sequence[DType], ranks: Sequence[int]) -> list[OutputFacts]:
        """See `Definition`."""
        check_types(dtypes, ranks)
        return [OutputFacts(dtypes[0], ((0, 0), (0, 1), (0, 2), (0, 3)))]

    def check(self, inputs: Sequence[TensorFacts]) -> None:
        """See `Definition`."""
        check_facts(inputs)

    def list_variants(self, inputs: Sequence[TensorFacts]) -> list[KernelVariant]:
        """See `Definition`."""
        most = AttentionShapes.read([fact.max_shape for fact in inputs])
        dtype = inputs[0].dtype
        tiles = list_tiles(most.group, most.tokens, most.head_dim, ITEM_BYTES[dtype])
        variants = [_attend_variant(dtype, most, tile) for tile in tiles]
        if any(limit_split(tile, self._count_keys(most)) > 1 for tile in tiles):
            variants.append(_merge_variant(dtype, most))
        return variants

    def count_workspace_bytes(self, inputs: Sequence[TensorFacts]) -> int:
        """See `Definition`."""
        most = AttentionShapes.read([fact.max_shape for fact in inputs])
        item_bytes = ITEM_BYTES[inputs[0].dtype]
        num_parts = [
            min(count_max_programs(tile) * tile.block_m, most.heads * most.rows * splits)
            for tile in list_tiles(most.group, most.tokens, most.head_dim, item_bytes)
            if (splits := limit_split(tile, self._count_keys(most))) > 1
        ]
        return 4 * max(num_parts, default=0) * (most.head_dim + 1)

    def plan(
        self, dtypes: Sequence[DType], shapes: Sequence[tuple[int, ...]], num_multiprocessors: int
    ) -> list[Launch]:
        """See `Definition`; none without queries."""
        check_shapes(shapes)
        at = AttentionShapes.read(shapes)
        if at.heads * at.rows == 0:
            return []
        if at.length < 1:
            raise UnsupportedError(
                "StreamFactorizedAttention: a mask of no positions, so that queries see nothing"
            )
        tile = choose_tile(at.rows, at.head_dim, ITEM_BYTES[dtypes[0]])
        num_tiles = -(-at.rows // tile.block_m)
        num_programs = num_tiles * at.heads
        splits = choose_split(tile, num_programs, self._count_keys(at), num_multiprocessors)
        window = min(self.window or _NO_WINDOW, _NO_WINDOW)
        parts = Pointer(WORKSPACE)
        num_parts = at.heads * splits * at.rows if splits > 1 else 0
        sums = Pointer(WORKSPACE, 4 * num_parts * at.head_dim)
        tensors = (_QUERY, _KEYS, _VALUES, _POSITIONS, _OUTPUT, parts, sums)
        sizes = (at.kv_heads, at.tokens, at.capacity, at.length, window, splits)
        attend = Launch(
            _attend_variant(dtypes[0], at, tile),
            (num_tiles, at.heads, splits),
            (*tensors, *sizes, self.scale * log2(e)),
        )
        if splits == 1:
            return [attend]
        merge_sizes = (at.kv_heads, at.tokens, at.length, window, splits)
        merge = Launch(
            _merge_variant(dtypes[0], at),
            (at.rows, at.heads, 1),
            (_POSITIONS, _OUTPUT, parts, sums, *merge_sizes, tile.block_m, tile.block_n),
        )
        return [attend, merge]

    def count_work(
        self,
        dtypes: Sequence[DType],
        shapes: Sequence[tuple[int, ...]],
        live_length: int | None = None,
    ) -> Work:
        """What one call must do at least, its queries the last T of `live_length` positions.

        Of every key/value head the keys and values that some query sees are read once; queries,
        positions and output are moved once. A query and a key it sees cost 2 D FLOPs for the score
        and 2 D for the value. The parts of shared tiles, which mostly stay in the L2 cache, and
        the softmax are not counted.

        Args:
            live_length: How many positions are live; by default as many as the mask says.
        """
        at = AttentionShapes.read(shapes)
        live = at.length if live_length is None else live_length
        if live < at.tokens:
            raise ValueError(f"{at.tokens} tokens among {live} positions")
        seen = [min(p + 1, self.window or p + 1) for p in range(live - at.tokens, live)]
        keys = live - max(live - at.tokens + 1 - (self.window or live), 0)
        row_bytes = at.head_dim * ITEM_BYTES[dtypes[0]]
        moved = 2 * at.heads * row_bytes * (keys + at.rows) + 8 * at.batch * at.tokens
        return Work(moved, 4 * at.head_dim * at.heads * at.group * sum(seen))

    def _count_keys(self, at: AttentionShapes) -> int:
        """The most keys that a tile of queries can see."""
        return min(at.length, self.window + at.tokens - 1) if self.window else at.length


def _attend_variant(dtype: DType, at: AttentionShapes, tile: Tile) -> KernelVariant:
    data = f"*{_TRITON[dtype]}:16"
    return KernelVariant(
        "stream_attention",
        "attend",
        (data, data, data, "*i64:16", data, "*fp32:16", "*fp32:16", *["i32"] * 6, "fp32"),
        (
            *_name_sizes(at),
            ("BLOCK_M", tile.block_m),
            ("BLOCK_N", tile.block_n),
            # Only fp32 has a choice: three products of TF32 parts, which keep fp32's digits.
            ("PRECISION", "tf32x3" if dtype == "float32" else "tf32"),
            ("SKIP_MASKS", tile.skip_masks),
        ),
        tile.num_warps,
        tile.num_stages,
    )


def _merge_variant(dtype: DType, at: AttentionShapes) -> KernelVariant:
    return KernelVariant(
        "stream_attention",
        "merge",
        ("*i64:16", f"*{_TRITON[dtype]}:16", "*fp32:16", "*fp32:16", *["i32"] * 7),
        (
            *_name_sizes(at),
            ("MAX_BLOCK_M", _LARGEST_BLOCK_M),
            # All at once where registers suffice: what one waits for here is latency.
            ("BLOCK_SPLITS", min(64, 8192 // pad_head_dim(at.head_dim))),
        ),
        num_warps=4,
        num_stages=1,
    )


def _name_sizes(at: AttentionShapes) -> tuple[tuple[str, int], ...]:
    return (
        ("GROUP", at.group),
        ("HEAD_DIM", at.head_dim),
        ("BLOCK_D", pad_head_dim(at.head_dim)),
    )
