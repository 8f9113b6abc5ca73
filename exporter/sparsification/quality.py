"""How well a predictor chooses channels, on text that it was not fitted to."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["LayerQuality", "QualityMeter", "select_channels"]


@dataclass(frozen=True, slots=True)
class LayerQuality:
    """One layer, over all held-out rows.

    `explained_variance` is 1 - E|u - p|^2 / E|u|^2. The shares say how many of the channels with
    the largest |SiLU(u) * v| (`activation_share`) or the largest sigma(u) (`gate_share`), as many
    per bank as run, are among those with the largest p; chance finds top_k / bank_size of them.
    `activation_ceiling` is what u itself finds of the largest activations: the most that an
    imitation of it can be expected to. `energy_share` is the part of the sum of (SiLU(u) * v)^2
    that the chosen channels hold, `energy_ceiling` that of the largest activations themselves.
    """

    layer: int
    explained_variance: float
    activation_share: float
    gate_share: float
    activation_ceiling: float
    energy_share: float
    energy_ceiling: float


class QualityMeter:
    """Adds up the numbers of one layer."""

    def __init__(self, layer: int, bank_size: int, top_k: int) -> None:
        self._layer = layer
        self._bank_size, self._top_k = bank_size, top_k
        self._error = self._gate_energy = 0.0
        self._energy = self._energy_chosen = self._energy_largest = 0.0
        self._kept = self._by_activation = self._by_gate = self._ceiling = 0

    def add(self, u: NDArray[np.float32], v: NDArray[np.float32], p: NDArray[np.float32]) -> None:
        """Count in rows [N, d_i]: the gate projection, the up projection and the prediction."""
        self._error += float(((u - p) ** 2).sum(dtype=np.float64))
        self._gate_energy += float((u**2).sum(dtype=np.float64))
        # exp may overflow to infinity, and SiLU is then the 0 that it should be.
        with np.errstate(over="ignore"):
            activation = np.abs(u / (1 + np.exp(-u)) * v)
        chosen, gates, activations = (
            select_channels(scores, self._bank_size, self._top_k) for scores in (p, u, activation)
        )
        self._kept += int(np.count_nonzero(chosen))
        self._by_gate += int(np.count_nonzero(chosen & gates))
        self._by_activation += int(np.count_nonzero(chosen & activations))
        self._ceiling += int(np.count_nonzero(gates & activations))
        squares = activation.astype(np.float64) ** 2
        self._energy += float(squares.sum())
        self._energy_chosen += float(squares[chosen].sum())
        self._energy_largest += float(squares[activations].sum())

    def result(self) -> LayerQuality:
        """The layer's numbers; a `ZeroDivisionError` before any row was counted."""
        tiny = np.finfo(np.float64).tiny
        return LayerQuality(
            layer=self._layer,
            explained_variance=1 - self._error / max(self._gate_energy, tiny),
            activation_share=self._by_activation / self._kept,
            gate_share=self._by_gate / self._kept,
            activation_ceiling=self._ceiling / self._kept,
            energy_share=self._energy_chosen / max(self._energy, tiny),
            energy_ceiling=self._energy_largest / max(self._energy, tiny),
        )


def select_channels(scores: NDArray[np.float32], bank_size: int, top_k: int) -> NDArray[np.bool_]:
    """The `top_k` largest of every bank of neighbours: [N, d_i] to bool [N, d_i]. Among equal ones
    any may be taken: this counts, it does not compute."""
    banks = scores.reshape(len(scores), -1, bank_size)
    if top_k == bank_size:
        return np.ones(scores.shape, np.bool_)
    best = np.argpartition(banks, bank_size - top_k, axis=-1)[..., bank_size - top_k :]
    mask = np.zeros(banks.shape, np.bool_)
    np.put_along_axis(mask, best, True, axis=-1)
    return mask.reshape(scores.shape)
