"""The kernels of `quatrain::BankTopKFeedForward`, interpreted, against the reference.

Up to 4 rows of 16 in 64 channels run row by row, more in tiles: low ones up to 64 rows.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plugins.bank_topk_ffn.network_cases import TOLERANCES, Case, make_case

from quatrain.plugins.bank_topk_ffn import few_rows
from quatrain.plugins.bank_topk_ffn.reference import bank_topk_feed_forward

FEW, MANY = (1, 2), (2, 5)
PATHS = pytest.mark.parametrize("rows", [FEW, MANY], ids=["few rows", "many rows"])
BANKS = [(32, 8), (64, 16), (128, 32), (64, 64), (64, 17), (128, 1), (8, 3), (24, 5), (2, 1)]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("rows", [(1, 1), (2, 2), (1, 5), (5, 14)])
def test_kernels_equal_reference(rows, dtype):
    make_case(rows, dtype=dtype).check()


@PATHS
@pytest.mark.parametrize("gate_mode", ["sigmoid", "hard", "silu"])
@pytest.mark.parametrize("activation", ["none", "relu", "silu"])
def test_every_gate_and_activation(rows, gate_mode, activation):
    make_case(rows, gate_mode=gate_mode, activation=activation).check()


@pytest.mark.parametrize("num_rows", [1, 200])
@pytest.mark.parametrize(("bank_size", "top_k"), BANKS)
def test_every_kind_of_bank(num_rows, bank_size, top_k):
    rows = (1, num_rows if num_rows == 1 else bank_size // top_k + 1)
    make_case(rows, 24, 5, bank_size=bank_size, top_k=top_k).check()


@pytest.mark.parametrize(
    ("num_banks", "bank_size", "top_k", "num_programs"),
    [
        (3, 64, 16, 3),  # a bank a program
        (3, 32, 8, 2),  # two banks a program, one for the last
        (7, 8, 3, 2),  # five banks a program, 15 channels in a block of 16; two for the last
        (2, 128, 32, 4),  # two programs a bank
        (2, 64, 17, 4),  # two programs a bank, of 9 and 8 channels
        (2, 64, 64, 8),  # four programs a bank
    ],
)
def test_large_networks_are_shared_out_otherwise(
    num_banks, bank_size, top_k, num_programs, monkeypatch
):
    """16 channels a program, which takes a network that is large."""
    monkeypatch.setattr(few_rows, "_NUM_PROGRAMS", 1)
    case = make_case((1, 1), 16, num_banks, 2, bank_size=bank_size, top_k=top_k)
    launches = case.plugin.plan(["float32"] * 6, [t.shape for t in case.inputs.values()], 108)
    assert launches[1].grid == (1, num_programs, 1)
    case.check()


@PATHS
@pytest.mark.parametrize(("hidden", "rank"), [(1, 1), (7, 3), (100, 33), (300, 70), (1032, 17)])
def test_odd_sizes(rows, hidden, rank):
    make_case(rows, hidden, 2, rank, dtype=torch.float16).check()


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    rows=st.tuples(st.integers(1, 2), st.integers(1, 9)),
    hidden=st.integers(1, 90),
    num_banks=st.integers(1, 5),
    rank=st.integers(1, 40),
    dtype=st.sampled_from(list(TOLERANCES)),
    bank=st.integers(1, 128).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size))),
    seed=st.integers(0, 99),
)
def test_any_shape(rows, hidden, num_banks, rank, dtype, bank, seed):
    size, top_k = bank
    case = make_case(rows, hidden, num_banks, rank, dtype, size, top_k, "sigmoid", "none", seed)
    case.check()


def spoil(case: Case, channels: np.ndarray, names: tuple[str, ...]) -> None:
    for name in names:
        case.inputs[name][torch.from_numpy(channels)] = torch.nan


@pytest.mark.parametrize("gate_mode", ["sigmoid", "hard", "silu"])
@pytest.mark.parametrize("num_rows", [1, 2])
def test_few_rows_touch_no_weights_of_inactive_channels(gate_mode, num_rows):
    case = make_case((1, num_rows), 40, 2, gate_mode=gate_mode)
    inactive = ~case.choose().any(axis=(0, 1))
    assert inactive.any()
    found = case.check()
    spoil(case, np.flatnonzero(inactive), ("gate", "up", "down"))
    assert torch.equal(case.run(), found)


@pytest.mark.parametrize("gate_mode", ["sigmoid", "hard", "silu"])
def test_many_rows_add_nothing_for_inactive_channels(gate_mode):
    """Not a product with zero: even NaN of theirs does not come through."""
    case = make_case(MANY, 40, 2, gate_mode=gate_mode)
    case.inputs["predictor_1"][:] = 0
    found = case.check()
    inactive = np.flatnonzero(np.arange(128) % 64 >= 16)
    spoil(case, inactive, ("gate", "up"))
    assert torch.equal(case.run(), found)


@PATHS
def test_of_equal_logits_the_lowest_index_wins(rows):
    """All equal; then zeros of both signs, and a cut through a group of equal ones."""
    case = make_case(rows, 24, 2)
    case.inputs["x"].abs_()
    case.inputs["predictor_0"].abs_()
    case.inputs["predictor_1"][:] = 0
    case.check()
    case.inputs["predictor_1"][0:64:2] = -0.0
    case.inputs["predictor_1"][70:74] = 1
    case.inputs["predictor_1"][100:] = 0.5
    chosen = case.choose()
    assert np.flatnonzero(chosen[0, 0]).tolist() == [*range(16), *range(70, 74), *range(100, 112)]
    case.check()


@PATHS
def test_minus_zero_is_zero(rows):
    """Their logits are what the sum of products makes of them: a predictor of rank 1 keeps them."""
    case = make_case(rows, 16, 1, rank=1)
    case.inputs["x"].fill_(1)
    case.inputs["predictor_0"].fill_(1)
    case.inputs["predictor_1"].fill_(0.0)
    case.inputs["predictor_1"][:32] = -0.0
    assert np.flatnonzero(case.choose()[0, 0]).tolist() == list(range(16))
    found = case.check()
    spoil(case, np.arange(16, 64), ("gate", "up"))
    assert torch.equal(case.run(), found)


@PATHS
def test_nan_never_takes_the_place_of_a_finite_logit(rows):
    case = make_case(rows, 24, 2)
    case.inputs["predictor_1"][:40] = torch.nan
    assert torch.isfinite(case.check()).all()
    # Too few finite ones: the first of the others fill up, behind a gate of zero.
    case.inputs["predictor_1"][:60] = torch.nan
    assert torch.isfinite(case.check()).all()
    assert np.flatnonzero(case.choose()[0, 0, :64]).tolist() == [*range(12), *range(60, 64)]


@PATHS
def test_logits_of_any_size_are_in_order(rows):
    """Infinite, huge, tiny: the order of floats is the order of their bits."""
    case = make_case(rows, 16, 1, rank=1)
    case.inputs["x"].fill_(1)
    case.inputs["predictor_0"].fill_(1 / 16)
    logits = np.r_[
        -np.inf, -(10.0 ** np.arange(30, -30, -2)), 10.0 ** np.arange(-30, 34, 2), np.inf
    ]
    order = np.random.default_rng(0).permutation(len(logits[:64]))
    case.inputs["predictor_1"][:, 0] = torch.from_numpy(logits[:64][order]).float()
    case.check()
    highest = sorted(np.argsort(-logits[:64][order])[:16].tolist())
    assert np.flatnonzero(case.choose()[0, 0]).tolist() == highest


@PATHS
def test_a_row_does_not_depend_on_its_neighbours(rows):
    """NaN in one spoils that one alone; the others keep their bits."""
    case = make_case(rows, 40, 2)
    found = case.check()
    case.inputs["x"][0, 1, 3] = torch.nan
    spoiled = case.run()
    assert spoiled[0, 1].isnan().all()
    spoiled[0, 1] = found[0, 1]
    assert torch.equal(spoiled, found)


def test_whole_banks_are_a_dense_network():
    case = make_case((1, 1), 24, 2, top_k=64, gate_mode="silu")
    x, gate, up, down = (case.inputs[name] for name in ("x", "gate", "up", "down"))
    expected = (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down
    torch.testing.assert_close(case.check(), expected)


def test_the_reference_of_these_tests_is_the_operators():
    """The case hands it W_down transposed."""
    case = make_case()
    arrays = case.arrays
    assert arrays["down"].shape == arrays["gate"].shape
    assert bank_topk_feed_forward(*arrays.values(), **case.attributes).shape == (1, 1, 48)
