"""The best low-rank linear predictor of the gate projection, in closed form."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["fit_predictor"]

# Of the mean variance of an input: what directions that the text never took count for.
_RIDGE = 1e-6


def fit_predictor(
    gate: NDArray[np.float32], moment: NDArray[np.float32], rank: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Find P0 [r, d] and P1 [d_i, r] with p = P1 P0 x nearest to u = W x, W being `gate` [d_i, d].

    Since u is linear in x, the expected squared error E|u - p|^2 depends on the inputs only through
    their second moment S = E[x x^T], `moment` [d, d], and reduced-rank regression has its least
    value in closed form (Eckart and Young for W S^(1/2)): with U_r the r leading left singular
    vectors of W S^(1/2), which are the leading eigenvectors of E[u u^T] = W S W^T,

        P1 = U_r,    P0 = U_r^T W,

    and the share of E|u|^2 it explains is that of the r largest eigenvalues. They are found through
    the smaller side: S^(1/2) W^T W S^(1/2) = V diag(s^2) V^T, d x d, and U_r spans W S^(1/2) V_r.

    Every channel counts alike: weighting them by the variance of what they are multiplied with, or
    by their part in the output, finds no more of the largest gates or activations on held-out text
    (SmolLM2-135M, rank 64: 75.2 % and 36.3 % as it is; 74.6 % and 36.0 % with either weighting).

    Factors are scaled, component by component, so that row i of P0 and column i of P1 have equal
    root mean squares: neither is then at the edge of what float16 holds.

    Raises:
        ValueError: The rank is not between 1 and d.
    """
    hidden = gate.shape[1]
    if not 1 <= rank <= hidden:
        raise ValueError(f"rank {rank} for inputs of {hidden}")
    weight = gate.astype(np.float64)
    root = _take_root(moment.astype(np.float64))
    product = weight @ root
    _, vectors = np.linalg.eigh(product.T @ product)
    leading = vectors[:, ::-1][:, :rank]
    # Orthonormal also where a singular value is so small that dividing by it would be noise.
    basis, _ = np.linalg.qr(product @ leading)
    return _balance(basis.T @ weight, basis)


def _take_root(moment: NDArray[np.float64]) -> NDArray[np.float64]:
    """The symmetric square root of a positive semidefinite matrix, a little away from singular."""
    values, vectors = np.linalg.eigh(moment)
    mean = max(float(values.mean()), float(np.finfo(np.float32).tiny))
    values = np.maximum(values, 0) + _RIDGE * mean
    root: NDArray[np.float64] = (vectors * np.sqrt(values)) @ vectors.T
    return root


def _balance(
    first: NDArray[np.float64], second: NDArray[np.float64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    tiny = np.finfo(np.float32).tiny
    rms_0 = np.sqrt((first**2).mean(axis=1)).clip(tiny)
    rms_1 = np.sqrt((second**2).mean(axis=0)).clip(tiny)
    scale = np.sqrt(rms_1 / rms_0)
    return (first * scale[:, None]).astype(np.float32), (second / scale).astype(np.float32)
