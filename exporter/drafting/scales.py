"""The units that dynamics are fitted in: states and embeddings with mean squares of 1."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.drafting.dynamics import Weights
from quatrain.exporter.drafting.states import StateRuns

__all__ = ["Scales", "measure_scales"]

_MOST_ROWS = 16384


@dataclass(frozen=True, slots=True)
class Scales:
    """The root mean squares of states and embeddings."""

    state: np.float32
    embedding: np.float32

    def fold(self, weights: Weights) -> Weights:
        """Dynamics for states and embeddings as they are, from those fitted in these units."""
        return weights | {
            "w_h": weights["w_h"] / self.state,
            "w_e": weights["w_e"] / self.embedding,
            "down": weights["down"] * self.state,
        }


def measure_scales(runs: StateRuns) -> Scales:
    """Of some thousand positions, spread over the text."""
    count = runs.count(1)
    states, embeddings = runs.take(np.arange(0, count, -(-count // _MOST_ROWS)), 1)
    return Scales(_take_rms(states[:, 0]), _take_rms(embeddings[:, 0]))


def _take_rms(rows: NDArray[np.float32]) -> np.float32:
    tiny = float(np.finfo(np.float32).tiny)
    return np.float32(max(float(np.sqrt(np.square(rows, dtype=np.float64).mean())), tiny))
