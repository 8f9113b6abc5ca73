"""The closed form against what it is said to be: the least squared error of any predictor."""

import numpy as np
import pytest

from quatrain.exporter.sparsification.low_rank import fit_predictor

RNG = np.random.default_rng(3)
HIDDEN, INNER = 12, 40
GATE = RNG.standard_normal((INNER, HIDDEN)).astype(np.float32)
# Inputs whose directions differ much in variance, as those of a model do.
X = (RNG.standard_normal((500, HIDDEN)) * np.geomspace(0.1, 10, HIDDEN)).astype(np.float32)
X = X @ np.linalg.qr(RNG.standard_normal((HIDDEN, HIDDEN)))[0].astype(np.float32)
MOMENT = X.T @ X / len(X)


def measure_error(first: np.ndarray, second: np.ndarray) -> float:
    return float(((X @ GATE.T - X @ first.T @ second.T) ** 2).sum(axis=1).mean())


@pytest.mark.parametrize("rank", [1, 5, 11])
def test_the_error_is_the_sum_of_the_eigenvalues_left_out(rank: int) -> None:
    error = measure_error(*fit_predictor(GATE, MOMENT, rank))
    outputs = X.astype(np.float64) @ GATE.T
    eigenvalues = np.linalg.eigvalsh(outputs.T @ outputs / len(X))  # of d_i x d_i, ascending
    assert error == pytest.approx(eigenvalues[: INNER - rank].sum(), rel=1e-3)
    for _ in range(5):
        basis = np.linalg.qr(RNG.standard_normal((INNER, rank)))[0]
        assert error < measure_error(basis.T @ GATE, basis)
    # The best approximation of the weight alone knows nothing of the inputs.
    basis = np.linalg.svd(GATE)[0][:, :rank]
    assert error < 0.99 * measure_error(basis.T @ GATE, basis)


def test_full_rank_is_exact() -> None:
    first, second = fit_predictor(GATE, MOMENT, HIDDEN)
    assert np.allclose(second @ first, GATE, atol=1e-4)


def test_a_moment_of_too_few_rows_still_gives_a_predictor() -> None:
    row = X[:1]
    first, second = fit_predictor(GATE, row.T @ row, 4)
    assert np.isfinite(first).all() and np.isfinite(second).all()
    assert np.allclose(row @ first.T @ second.T, row @ GATE.T, atol=1e-3)
    none = np.zeros((HIDDEN, HIDDEN), np.float32)
    assert all(np.isfinite(factor).all() for factor in fit_predictor(GATE, none, 4))


def test_factors_are_balanced() -> None:
    first, second = fit_predictor(GATE, MOMENT, 6)
    rms = [np.sqrt((first**2).mean(axis=1)), np.sqrt((second**2).mean(axis=0))]
    assert np.allclose(rms[0], rms[1], rtol=1e-4)


@pytest.mark.parametrize("rank", [0, HIDDEN + 1])
def test_a_rank_that_cannot_be_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match="rank"):
        fit_predictor(GATE, MOMENT, rank)
