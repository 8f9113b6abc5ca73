"""The kernels of `quatrain::StreamFactorizedAttention` in Triton's interpreter, against the
reference. Whatever no query sees is NaN in the caches, so reading it would spoil the result."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plugins.interpreter import DTYPES, launch_variant, run_plan
from tests.plugins.stream_attention.test_body import INPUTS, make_session

from quatrain.plugins.launch import Pointer
from quatrain.plugins.stream_attention.plugin import StreamFactorizedAttentionPlugin
from quatrain.plugins.stream_attention.reference import stream_factorized_attention

# Both see the same rounded inputs. Kernels round the weights to the type before they multiply
# values with them, and the result at the end; bf16 is cut, not rounded, by the interpreter.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
# Tiles of keys for 16 channels (few rows, fp16) and 256.
BLOCK_16, BLOCK_256 = 128, 16


def make_inputs(
    positions: list[list[int]],
    heads: tuple[int, int],
    head_dim: int,
    capacity: int,
    dtype: torch.dtype = torch.float16,
    length: int | None = None,
) -> list[torch.Tensor]:
    """Random ones for heads (key/value heads, query heads of each); the mask says nothing."""
    generator = torch.Generator().manual_seed(head_dim + capacity)
    kv_heads, group = heads
    batch, tokens = len(positions), len(positions[0])
    live = length or max(map(max, positions)) + 1

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    return [
        draw(batch, kv_heads * group, tokens, head_dim),
        draw(batch, kv_heads, capacity, head_dim),
        draw(batch, kv_heads, capacity, head_dim),
        torch.tensor(positions),
        torch.zeros(batch, 1, tokens, live, dtype=torch.bool),
    ]


def make_run(starts: list[int], tokens: int) -> list[list[int]]:
    return [list(range(start, start + tokens)) for start in starts]


def hide_unseen(inputs: list[torch.Tensor], window: int) -> list[torch.Tensor]:
    """NaN where no query of the batch row looks."""
    query, keys, values, positions, mask = inputs
    seen_by_last = positions.clamp(max=mask.shape[3] - 1)
    hidden = [keys.clone(), values.clone()]
    for cache in hidden:
        for b, row in enumerate(seen_by_last):
            cache[b, :, int(row.max()) + 1 :] = torch.nan
            if window:
                cache[b, :, : max(int(row.min()) - window + 1, 0)] = torch.nan
    return [query, *hidden, positions, mask]


def assert_like_reference(
    inputs: list[torch.Tensor], window: int = 0, num_multiprocessors: int = 4
) -> list[int]:
    """Compare, and return the splits of the keys for each launch (merging has none)."""
    scale = inputs[0].shape[3] ** -0.5
    plugin = StreamFactorizedAttentionPlugin(scale=scale, window=window)
    (found,) = run_plan(plugin, hide_unseen(inputs, window), num_multiprocessors)
    query, keys, values, positions, mask = inputs
    expected = stream_factorized_attention(
        *(tensor.float().numpy() for tensor in (query, keys, values)),
        positions.clamp(0, mask.shape[3] - 1).numpy(),
        scale=scale,
        window=window,
    )
    tolerance = TOLERANCE[query.dtype]
    assert found.dtype == query.dtype
    np.testing.assert_allclose(found.float().numpy(), expected, rtol=tolerance, atol=tolerance)
    dtypes = [DTYPES[tensor.dtype] for tensor in inputs]
    plan = plugin.plan(dtypes, [tuple(t.shape) for t in inputs], num_multiprocessors)
    return [launch.grid[2] for launch in plan]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 5, 33])
def test_kernels_equal_the_reference(dtype: torch.dtype, tokens: int) -> None:
    inputs = make_inputs(make_run([560, 0], tokens), (1, 2), 16, 600, dtype)
    splits, _ = assert_like_reference(inputs, num_multiprocessors=16)
    assert splits > 1


@pytest.mark.parametrize(
    ("live", "capacity"),
    [(1, 1), (1, 4096), (BLOCK_16, 500), (BLOCK_16 + 1, 500), (512, 512), (700, 4096)],
)
def test_only_live_keys_are_read(live: int, capacity: int) -> None:
    """However long the mask says the cache is: a captured CUDA graph is replayed at any length."""
    inputs = make_inputs([[live - 1], [0]], (1, 2), 16, capacity, length=capacity)
    splits = assert_like_reference(inputs, num_multiprocessors=16)
    assert len(splits) == 1 + (capacity > 3 * BLOCK_16)


@pytest.mark.parametrize(("num_multiprocessors", "expected"), [(1, 1), (2, 2), (3, 4), (200, 4)])
def test_any_number_of_programs_shares_the_keys(num_multiprocessors: int, expected: int) -> None:
    """Nine tiles of keys, or fewer, in equal and unequal shares."""
    inputs = make_inputs([[9 * BLOCK_256 - 5], [0], [3 * BLOCK_256]], (1, 1), 256, 150)
    splits = assert_like_reference(inputs, num_multiprocessors=num_multiprocessors)
    assert splits[0] == expected


@pytest.mark.parametrize("window", [1, 15, 16, 17, 100])
@pytest.mark.parametrize("tokens", [1, 5])
def test_a_window_starts_late(window: int, tokens: int) -> None:
    inputs = make_inputs(make_run([150, 0, 40], tokens), (1, 2), 256, 170)
    assert_like_reference(inputs, window, num_multiprocessors=16)


@pytest.mark.parametrize("window", [0, 20, 150])
@pytest.mark.parametrize("start", [0, 170])
@pytest.mark.parametrize("num_multiprocessors", [1, 8])
def test_large_tiles_skip_masks(window: int, start: int, num_multiprocessors: int) -> None:
    """Tiles that all rows see have no mask, those at either end do; a tile spans two heads."""
    inputs = make_inputs(make_run([start, 3], 25), (1, 3), 16, 220)
    assert_like_reference(inputs, window, num_multiprocessors)


@pytest.mark.parametrize("head_dim", [16, 48, 64, 80, 96, 128, 160, 256])
@pytest.mark.parametrize("tokens", [1, 23])
def test_head_dims_of_any_multiple_of_16(head_dim: int, tokens: int) -> None:
    assert_like_reference(make_inputs(make_run([60], tokens), (1, 3), head_dim, 90))


@pytest.mark.parametrize("window", [0, 9])
def test_padding_behind_the_live_length_sees_what_the_last_position_does(window: int) -> None:
    """A batch row that runs less is padded with positions behind its run, maybe behind the mask."""
    inputs = make_inputs([[60, 61, 62, 63], [5, 6, 7, 8]], (1, 2), 16, 80, length=62)
    assert_like_reference(inputs, window)


@pytest.mark.parametrize("window", [0, 9])
def test_padding_is_what_the_body_makes_of_it(window: int) -> None:
    """With the mask that the runtime and the graph make, whatever lies behind the live length."""
    inputs = make_inputs([[60, 61, 62, 63], [5, 6, 7, 8]], (2, 2), 16, 80, torch.float32, 62)
    positions, keys = inputs[3], torch.arange(62)
    mask = keys <= positions[:, None, :, None]
    if window:
        mask &= keys > positions.clamp(max=61)[:, None, :, None] - window
    arrays = dict(zip(INPUTS, (t.numpy() for t in [*inputs[:4], mask]), strict=True))
    (expected,) = make_session(0.25, window).run(None, arrays)
    plugin = StreamFactorizedAttentionPlugin(scale=0.25, window=window)
    (found,) = run_plan(plugin, inputs)
    np.testing.assert_allclose(found.numpy(), expected, atol=TOLERANCE[torch.float32])


@pytest.mark.parametrize("tokens", [3, 40])
def test_positions_may_be_in_any_order(tokens: int) -> None:
    """The last layer attends only with the rows whose result is wanted."""
    positions = np.random.default_rng(0).permutation(250)[: 2 * tokens].reshape(2, -1)
    inputs = make_inputs(positions.tolist(), (1, 2), 16, 260)
    assert_like_reference(inputs)
    assert_like_reference(inputs, window=40)


def test_a_stream_sees_no_other() -> None:
    inputs = make_inputs([[70]], (6, 1), 16, 80)
    plugin = StreamFactorizedAttentionPlugin(scale=0.25)
    (before,) = run_plan(plugin, inputs)
    for tensor in inputs[:3]:
        tensor[:, [0, 1, 2, 3, 5]] = torch.nan
    (after,) = run_plan(plugin, inputs)
    assert torch.equal(after[:, 4], before[:, 4])
    assert after[:, [0, 1, 2, 3, 5]].isnan().all()


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 8),
    kv_heads=st.integers(1, 2),
    group=st.sampled_from([1, 2, 3, 4, 7, 8, 12, 40]),
    tokens=st.sampled_from([1, 1, 2, 5]),
    head_dim=st.sampled_from([16, 80, 256]),
    starts=st.lists(st.integers(0, 90), min_size=1, max_size=2),
    slack=st.integers(0, 70),
    window=st.sampled_from([0, 0, 1, 40, 10**12]),
    num_multiprocessors=st.sampled_from([1, 16, 108]),
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
)
def test_kernels_equal_the_reference_for_any_shape(
    n, kv_heads, group, tokens, head_dim, starts, slack, window, num_multiprocessors, dtype
):
    capacity = max(starts) + tokens + slack
    inputs = make_inputs(make_run(starts, tokens), (n * kv_heads, group), head_dim, capacity, dtype)
    assert_like_reference(inputs, window, num_multiprocessors)


def test_a_cache_of_more_than_2_31_elements_is_read_where_it_should_be() -> None:
    """Of its memory no more is touched than what is live."""
    heads, capacity, head_dim, live = 129, 2**20, 16, 4
    assert (heads - 1) * capacity * head_dim == 2**31
    try:
        cache = torch.empty((1, heads, capacity, head_dim), dtype=torch.float16)
    except RuntimeError:
        pytest.skip("the machine does not promise memory that it has not")
    generator = torch.Generator().manual_seed(1)
    seen = torch.randn((1, heads, live, head_dim), generator=generator).half()
    cache[:, :, :live] = seen
    query = torch.randn((1, heads, 1, head_dim), generator=generator).half()
    output, positions = torch.full_like(query, torch.nan), torch.tensor([[live - 1]])
    plugin = StreamFactorizedAttentionPlugin(scale=0.25)
    # Keys are values here, which takes half the memory.
    shapes = [tuple(t.shape) for t in (query, cache, cache, positions)] + [(1, 1, 1, live)]

    (launch,) = plugin.plan(["float16"] * 3 + ["int64", "bool"], shapes, 1)
    tensors = [query, cache, cache, positions, None, output, torch.zeros(1)]
    arguments = [tensors[a.tensor] if isinstance(a, Pointer) else a for a in launch.arguments]
    launch_variant(launch.variant, launch.grid, arguments)

    expected = stream_factorized_attention(
        query.numpy(), seen.numpy(), seen.numpy(), positions.numpy(), scale=0.25
    )
    np.testing.assert_allclose(output.float().numpy(), expected, rtol=2e-3, atol=2e-3)
