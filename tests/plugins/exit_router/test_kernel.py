"""The kernels of `quatrain::ExitRouter` in Triton's interpreter, against the reference."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plugins.interpreter import run_plan

from quatrain.plugins.exit_router import launches
from quatrain.plugins.exit_router.plugin import ExitRouterPlugin
from quatrain.plugins.exit_router.reference import RouterBlock, route_exit

# Both see the same rounded inputs and compute in fp32; `normed` is rounded to its type at the end.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
LOG_PROBS_TOLERANCE = 2e-5


@pytest.fixture(params=["one launch", "a launch a layer"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "one launch":
        monkeypatch.setattr(launches, "_ONE_LAUNCH_BYTES", 0)
    return request.param


def make_inputs(
    leading: tuple[int, ...],
    sizes: tuple[int, int, int],
    num_blocks: int,
    dtype: torch.dtype,
    seed: int = 0,
) -> list[torch.Tensor]:
    """Random ones for `sizes` (hidden, inner, router)."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner, router = sizes

    def draw(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * scale).to(dtype)

    tensors = [draw(*leading, hidden, scale=4), draw(hidden)]
    for j in range(num_blocks):
        width = router if j else hidden
        tensors += [draw(inner, width, scale=width**-0.5), draw(inner)]
        tensors += [draw(router, inner, scale=inner**-0.5), draw(router)]
    return [*tensors, draw(router), draw(2, router, scale=router**-0.5), draw(2)]


def run_reference(
    inputs: list[torch.Tensor], epsilon: float, temperature: float
) -> list[np.ndarray]:
    arrays = [tensor.float().numpy() for tensor in inputs]
    blocks = [RouterBlock(*arrays[j : j + 4]) for j in range(2, len(arrays) - 3, 4)]
    return list(
        route_exit(*arrays[:2], blocks, *arrays[-3:], epsilon=epsilon, temperature=temperature)
    )


def assert_like_reference(
    inputs: list[torch.Tensor], epsilon: float = 1e-5, temperature: float = 1.0
) -> int:
    """Compare, and return how many launches it took."""
    plugin = ExitRouterPlugin(epsilon=epsilon, temperature=temperature)
    normed, log_probs = run_plan(plugin, inputs)
    assert normed.dtype == inputs[0].dtype
    expected = run_reference(inputs, epsilon, temperature)
    tolerance = TOLERANCE[normed.dtype]
    np.testing.assert_allclose(normed.float().numpy(), expected[0], rtol=tolerance, atol=tolerance)
    scale = max(1.0, float(np.abs(expected[1]).max(initial=0)))
    np.testing.assert_allclose(log_probs.numpy(), expected[1], atol=LOG_PROBS_TOLERANCE * scale)
    dtypes = [{"torch.float32": "float32"}.get(str(t.dtype), str(t.dtype)[6:]) for t in inputs]
    return len(plugin.plan(dtypes, [tuple(t.shape) for t in inputs], 4))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("leading", [(1, 1), (2, 9)], ids=str)
def test_kernels_equal_the_reference(way: str, dtype: torch.dtype, leading: tuple[int, ...]):
    taken = assert_like_reference(make_inputs(leading, (96, 64, 80), 1, dtype))
    assert taken == (1 if way == "one launch" else 3)


@pytest.mark.parametrize("num_blocks", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [1, 3])
def test_every_number_of_blocks(way: str, num_blocks: int, rows: int):
    inputs = make_inputs((1, rows), (40, 24, 36), num_blocks, torch.float32)
    taken = assert_like_reference(inputs, temperature=0.7)
    assert taken == (1 if way == "one launch" else 2 * num_blocks + 1)


@pytest.mark.parametrize("rows", [1, 17])
def test_odd_widths(way: str, rows: int):
    assert_like_reference(make_inputs((rows,), (173, 31, 57), 2, torch.float16), epsilon=0.1)


def test_a_wide_router_takes_a_launch_a_layer():
    inputs = make_inputs((1, 1), (1100, 300, 90), 1, torch.float16)
    assert assert_like_reference(inputs) == 3


def test_no_rows_are_no_launch():
    assert assert_like_reference(make_inputs((0, 1), (16, 8, 16), 1, torch.float32)) == 0


def test_log_probs_stay_finite_when_the_router_is_sure(way: str):
    inputs = make_inputs((1, 2), (16, 8, 16), 1, torch.float16)
    inputs[-1] = torch.tensor([-300.0, 300.0], dtype=torch.float16)
    assert_like_reference(inputs)


def test_a_state_of_zeros_is_divided_by_epsilon(way: str):
    inputs = make_inputs((1, 2), (16, 8, 16), 1, torch.float32)
    inputs[0].zero_()
    assert_like_reference(inputs, epsilon=1e-6)


def test_rows_do_not_see_each_other(way: str):
    """A row of NaN spoils itself alone."""
    inputs = make_inputs((1, 3), (24, 8, 16), 1, torch.float32)
    plugin = ExitRouterPlugin(epsilon=1e-5, temperature=1.0)
    clean = run_plan(plugin, inputs)
    inputs[0][0, 1] = float("nan")
    spoiled = run_plan(plugin, inputs)
    for a, b in zip(clean, spoiled, strict=True):
        assert torch.equal(a[0, ::2], b[0, ::2])
        assert b[0, 1].isnan().all()


@settings(max_examples=12, deadline=None)
@given(
    leading=st.lists(st.integers(1, 5), min_size=0, max_size=3),
    sizes=st.tuples(st.integers(1, 70), st.integers(1, 40), st.integers(1, 40)),
    num_blocks=st.integers(1, 4),
    temperature=st.floats(0.25, 4),
    seed=st.integers(0, 99),
)
def test_any_shape(
    leading: list[int],
    sizes: tuple[int, int, int],
    num_blocks: int,
    temperature: float,
    seed: int,
):
    inputs = make_inputs(tuple(leading), sizes, num_blocks, torch.float32, seed)
    assert_like_reference(inputs, temperature=temperature)
