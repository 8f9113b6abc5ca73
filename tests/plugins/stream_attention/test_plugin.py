"""What `quatrain::StreamFactorizedAttention` plans, counts and refuses."""

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quatrain.plugins.definition import DefinitionFactory, DType, TensorFacts, UnsupportedError
from quatrain.plugins.launch import WORKSPACE, Launch, Pointer
from quatrain.plugins.stream_attention.plugin import StreamFactorizedAttentionPlugin
from quatrain.plugins.stream_attention.tiles import MAX_SPLITS

FACTORY: DefinitionFactory = StreamFactorizedAttentionPlugin  # mypy: it is one
PLUGIN = StreamFactorizedAttentionPlugin(scale=0.125)
Shapes = list[tuple[int, ...]]


def make_shapes(
    batch: int, kv_heads: int, group: int, tokens: int, head_dim: int, capacity: int, length: int
) -> Shapes:
    cache = (batch, kv_heads, capacity, head_dim)
    query = (batch, kv_heads * group, tokens, head_dim)
    return [query, cache, cache, (batch, tokens), (batch, 1, tokens, length)]


def make_dtypes(dtype: DType = "float16") -> list[DType]:
    return [dtype, dtype, dtype, "int64", "bool"]


def make_facts(most: Shapes, dtype: DType = "float16") -> list[TensorFacts]:
    """Batch, tokens and live length are dynamic."""
    query, keys, values, _, _ = most
    shapes: Shapes = [(-1, query[1], -1, query[3]), (-1, *keys[1:]), (-1, *values[1:])]
    shapes += [(-1, -1), (-1, 1, -1, -1)]
    return [
        TensorFacts(d, shape, bound)
        for d, shape, bound in zip(make_dtypes(dtype), shapes, most, strict=True)
    ]


def count_used_bytes(launch: Launch, at: Shapes) -> int:
    """How far a launch of `attend` writes into the workspace."""
    if launch.grid[2] == 1:
        return 0
    sums = launch.arguments[6]
    assert isinstance(sums, Pointer) and sums.tensor == WORKSPACE
    return sums.offset_bytes + 4 * launch.grid[2] * at[0][0] * at[0][1] * at[0][2]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data())
def test_plans_stay_within_what_was_built(data: st.DataObject) -> None:
    """Of any shapes within the bounds, on any device."""
    most = [
        data.draw(st.integers(1, size), label=name)
        for name, size in {"batch": 8, "kv_heads": 64, "group": 70, "tokens": 300}.items()
    ]
    head_dim = data.draw(st.sampled_from([16, 80, 128]), label="head_dim")
    capacity = data.draw(st.integers(1, 40000), label="capacity")
    window = data.draw(st.sampled_from([0, 1, 512]), label="window")
    dtype: DType = data.draw(st.sampled_from(["float16", "bfloat16", "float32"]), label="dtype")
    plugin = replace(PLUGIN, window=window)
    facts = make_facts(make_shapes(*most, head_dim, capacity, capacity), dtype)
    plugin.check(facts)
    known, workspace = plugin.list_variants(facts), plugin.count_workspace_bytes(facts)
    assert len(set(known)) == len(known) <= 5
    assert workspace <= 40 << 20
    for _ in range(5):
        batch = data.draw(st.integers(1, most[0]), label="this batch")
        tokens = data.draw(st.integers(1, most[3]), label="these tokens")
        length = data.draw(st.integers(1, capacity), label="this length")
        shapes = make_shapes(batch, most[1], most[2], tokens, head_dim, capacity, length)
        launches = plugin.plan(make_dtypes(dtype), shapes, data.draw(st.integers(1, 300)))
        assert {launch.variant for launch in launches} <= set(known)
        assert count_used_bytes(launches[0], shapes) <= workspace
        assert all(len(x.arguments) == len(x.variant.types) for x in launches)
        assert all(max(launch.grid[1:]) <= 65535 for launch in launches)
        assert len(launches) == 1 + (launches[0].grid[2] > 1)


@pytest.mark.parametrize("num_multiprocessors", [82, 84, 108, 132])
@pytest.mark.parametrize("kv_heads", [1, 3, 8, 24, 64])
def test_decoding_fills_the_device_at_long_context(num_multiprocessors: int, kv_heads: int) -> None:
    """At least three quarters of what runs at once, and no second wave."""
    shapes = make_shapes(1, kv_heads, 2, 1, 128, 32768, 32768)
    attend, merge = PLUGIN.plan(make_dtypes(), shapes, num_multiprocessors)
    num_programs = attend.grid[0] * attend.grid[1] * attend.grid[2]
    room = 4 * num_multiprocessors
    assert 0.75 * min(room, MAX_SPLITS * kv_heads) <= num_programs <= room
    assert merge.grid == (2, kv_heads, 1)


def test_short_or_windowed_attention_is_not_split() -> None:
    short = make_shapes(1, 8, 2, 1, 128, 32768, 96)
    assert len(PLUGIN.plan(make_dtypes(), short, 108)) == 1
    long = make_shapes(1, 8, 2, 1, 128, 32768, 32768)
    assert len(replace(PLUGIN, window=96).plan(make_dtypes(), long, 108)) == 1
    assert len(PLUGIN.plan(make_dtypes(), long, 108)) == 2


@pytest.mark.parametrize("window", [0, 1, 3, 100])
@pytest.mark.parametrize(("tokens", "live"), [(1, 1), (1, 9), (4, 4), (4, 10)])
def test_work_is_counted_pair_by_pair(window: int, tokens: int, live: int) -> None:
    shapes = make_shapes(2, 3, 2, tokens, 16, 64, 20)
    plugin = replace(PLUGIN, window=window)
    seen = [range(max(0, p - (window or p + 1) + 1), p + 1) for p in range(live - tokens, live)]
    num_keys = len(set().union(*seen))

    work = plugin.count_work(make_dtypes(), shapes, live)

    assert work.flops == 2 * 6 * sum(map(len, seen)) * 16 * 4
    rows = 2 * (2 * 6 * tokens) + 2 * (2 * 3 * num_keys)
    assert work.bytes_moved == rows * 16 * 2 + 2 * tokens * 8
    assert plugin.count_work(make_dtypes(), shapes) == plugin.count_work(make_dtypes(), shapes, 20)


def test_work_of_more_tokens_than_positions_is_refused() -> None:
    with pytest.raises(ValueError, match="4 tokens among 3 positions"):
        PLUGIN.count_work(make_dtypes(), make_shapes(1, 1, 1, 4, 16, 8, 8), 3)


GOOD = make_shapes(2, 4, 2, 8, 64, 128, 128)


@pytest.mark.parametrize("head_dim", [16, 80, 96, 256])
def test_head_dims_need_not_be_powers_of_two(head_dim: int) -> None:
    PLUGIN.check(make_facts(make_shapes(2, 4, 2, 8, head_dim, 128, 128)))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (make_shapes(1, 2, 2, 1, 72, 64, 64), "head dims 72, 72 and 72"),
        (make_shapes(1, 2, 2, 1, 272, 64, 64), "for float16 up to 256"),
        ([(1, 4, 1, 64), *make_shapes(1, 2, 2, 1, 32, 64, 64)[1:]], "head dims 64, 32 and 32"),
        ([(1, 5, 1, 64), *make_shapes(1, 2, 2, 1, 64, 64, 64)[1:]], "5 query heads over 2 key"),
        ([GOOD[0], GOOD[1], (2, 4, 99, 64), *GOOD[3:]], "key_cache 128, value_cache 99 positions"),
        ([GOOD[0], GOOD[1], (2, 8, 128, 64), *GOOD[3:]], "4 key and 8 value heads"),
        (make_shapes(1024, 64, 1, 1, 64, 64, 64), "65,536 key/value heads in a batch of 1024"),
        (make_shapes(1, 1, 1, 1, 16, 2**24 + 1, 1), "16,777,217 positions"),
        (make_shapes(1, 1, 64, 2**20, 64, 2**20, 64), "1,048,576 tokens of 64 heads"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_shapes_without_a_kernel_are_refused(shapes: Shapes, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        PLUGIN.check(make_facts(shapes))


@pytest.mark.parametrize(
    ("tensor", "shape", "message"),
    [
        (1, (1, 4, 128, 64), "query 2, key_cache 1, value_cache 2, position_ids 2 batch rows"),
        (2, (2, 4, 96, 64), "key_cache 128, value_cache 96 positions"),
        (3, (1, 8), "position_ids 1 batch rows"),
        (3, (2, 7), "query 8, position_ids 7 tokens"),
    ],
)
def test_inputs_that_a_kernel_would_read_beyond_are_refused(
    tensor: int, shape: tuple[int, ...], message: str
) -> None:
    """When an engine is built, and where sizes are only known at a call."""
    shapes = [*GOOD[:tensor], shape, *GOOD[tensor + 1 :]]
    with pytest.raises(UnsupportedError, match=message):
        PLUGIN.plan(make_dtypes(), shapes, 108)
    facts = zip(make_dtypes(), shapes, strict=True)
    with pytest.raises(UnsupportedError, match=message):
        PLUGIN.check([TensorFacts(dtype, shape, shape) for dtype, shape in facts])


def test_dynamic_heads_are_refused() -> None:
    facts = make_facts(GOOD)
    facts[0] = replace(facts[0], shape=(-1, -1, -1, 64))
    with pytest.raises(UnsupportedError, match="-1 query heads"):
        PLUGIN.check(facts)


def test_long_heads_in_fp32_are_refused() -> None:
    shapes = make_shapes(1, 2, 2, 1, 160, 64, 64)
    PLUGIN.check(make_facts(shapes))
    with pytest.raises(UnsupportedError, match="for float32 up to 128"):
        PLUGIN.check(make_facts(shapes, "float32"))


@pytest.mark.parametrize(
    ("dtypes", "message"),
    [
        (["float16", "float16", "bfloat16", "int64", "bool"], "float16, float16, bfloat16"),
        (["int64", "int64", "int64", "int64", "bool"], "which must be one of float16"),
        (["float16", "float16", "float16", "float32", "bool"], "float32 and bool"),
        (["float16", "float16", "float16", "int64"], "4 inputs"),
    ],
)
def test_types_without_a_kernel_are_refused(dtypes: list[DType], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        PLUGIN.describe_outputs(dtypes, [4, 4, 4, 2, 4][: len(dtypes)])


def test_other_ranks_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="query has 3 axes, which must be 4"):
        PLUGIN.describe_outputs(make_dtypes(), [3, 4, 4, 2, 4])


@pytest.mark.parametrize(
    ("scale", "window", "message"),
    [(float("nan"), 0, "scale nan"), (float("inf"), 0, "scale inf"), (1.0, -1, "window -1")],
)
def test_attributes_without_meaning_are_refused(scale: float, window: int, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        StreamFactorizedAttentionPlugin(scale=scale, window=window)


@pytest.mark.parametrize(("batch", "tokens"), [(0, 1), (2, 0), (0, 0)])
def test_without_queries_there_is_nothing_to_launch(batch: int, tokens: int) -> None:
    assert PLUGIN.plan(make_dtypes(), make_shapes(batch, 2, 2, tokens, 64, 64, 8), 108) == []


def test_a_mask_of_no_positions_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="a mask of no positions"):
        PLUGIN.plan(make_dtypes(), make_shapes(1, 2, 2, 1, 64, 64, 0), 108)


def test_the_output_is_shaped_like_the_query() -> None:
    (output,) = PLUGIN.describe_outputs(make_dtypes("bfloat16"), [4, 4, 4, 2, 4])
    assert (output.dtype, output.shape) == ("bfloat16", ((0, 0), (0, 1), (0, 2), (0, 3)))


def test_split_shares_are_of_two_tiles_at_least() -> None:
    shapes = make_shapes(1, 1, 1, 1, 128, 4096, 320)
    assert PLUGIN.plan(make_dtypes(), shapes, 108)[0].grid[2] == ceil(320 / 32) // 2
