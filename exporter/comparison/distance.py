"""How far one tensor is from the reference's, token by token."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.comparison.tolerances import Kind, Tolerances

__all__ = ["LARGEST", "Distance", "find_tolerance", "measure"]

# What stands for infinity in reports, which JSON cannot say.
LARGEST = 1e38


@dataclass(frozen=True, slots=True)
class Distance:
    """Of one tensor.

    Attributes:
        max_abs_error: The largest absolute difference; of channels, the share that is not active,
            or that is active beyond them.
        reference_max: What it is divided by for `error`.
        error: `LARGEST` where something is not finite.
        errors: `error` of each token [B, L].
        num_not_finite: Values that are NaN or infinite, here or in the reference: then there is
            nothing to compare.
        single_choice: What one channel of all of them makes of `error`; 0 of anything else.
    """

    max_abs_error: float
    reference_max: float
    error: float
    errors: NDArray[np.float64]
    num_not_finite: int
    single_choice: float = 0.0

    def locate_worst(self) -> tuple[int, int]:
        """Sequence and position of the largest error."""
        sequence, position = np.unravel_index(int(self.errors.argmax()), self.errors.shape)
        return int(sequence), int(position)

    def locate_first(self, tolerance: float) -> int | None:
        """The first position at which any sequence is beyond a tolerance."""
        beyond = np.flatnonzero((self.errors > tolerance).any(axis=0))
        return int(beyond[0]) if len(beyond) else None


def measure(
    kind: Kind, reference: NDArray[Any], found: NDArray[Any], valid: NDArray[np.bool_]
) -> Distance:
    """Compare arrays [B, L, ...] at the valid tokens [B, L]."""
    batch_size, length = valid.shape
    reference = reference.reshape(batch_size, length, -1)
    found = found.reshape(batch_size, length, -1)
    if kind == "selection":
        wanted, chosen = reference.astype(bool), found != 0
        missed, surplus = ((a & ~b).sum(axis=-1) for a, b in ((wanted, chosen), (chosen, wanted)))
        shares = np.maximum(missed, surplus) / np.maximum(wanted.sum(axis=-1), 1)
        errors = np.where(valid, shares, 0.0)
        mean = float(shares[valid].mean())
        return Distance(mean, 1.0, mean, errors, 0, 1 / max(int(wanted[valid].sum()), 1))
    with np.errstate(invalid="ignore", over="ignore"):
        differences = np.abs(reference - found).max(axis=-1).astype(np.float64)
    bad = ~(np.isfinite(found) & np.isfinite(reference))
    differences = np.where(valid & ~bad.any(axis=-1), differences, 0.0)
    magnitudes = np.abs(reference[valid & ~bad.any(axis=-1)])
    largest = float(magnitudes.max(initial=0.0))
    scale = max(largest, 1.0 if kind == "log_probs" else float(np.finfo(np.float32).tiny))
    errors = np.where(valid & bad.any(axis=-1), LARGEST, np.minimum(differences / scale, LARGEST))
    return Distance(
        max_abs_error=LARGEST if bad[valid].any() else float(differences.max(initial=0.0)),
        reference_max=largest,
        error=float(errors.max(initial=0.0)),
        errors=errors,
        num_not_finite=int(bad[valid].sum()),
    )


def find_tolerance(kind: Kind, tolerances: Tolerances) -> float:
    """The largest error allowed; of channels, the largest share that may be missed."""
    if kind == "selection":
        return 1.0 - tolerances.selection
    return float(getattr(tolerances, kind))
