"""Adam (arXiv 1412.6980), with warm-up and a cosine to nothing."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["Adam", "choose_rate"]

_BETA_1, _BETA_2 = 0.9, 0.99
_EPSILON = 1e-8
_WARM_UP = 0.05

Arrays = dict[str, NDArray[np.float32]]


class Adam:
    """Changes float32 weights in place; `moments` is all it remembers, beside the step."""

    def __init__(self, weights: Arrays, moments: Arrays | None = None) -> None:
        self._weights = weights
        self.moments: Arrays = moments or {
            f"{moment}.{name}": np.zeros_like(weight)
            for name, weight in weights.items()
            for moment in ("first", "second")
        }

    def update(self, gradients: Mapping[str, NDArray[np.floating]], rate: float, step: int) -> None:
        """Go one step down; `step` counts from 0."""
        scale_1 = 1 - _BETA_1 ** (step + 1)
        scale_2 = 1 - _BETA_2 ** (step + 1)
        for name, gradient in gradients.items():
            first, second = (self.moments[f"{moment}.{name}"] for moment in ("first", "second"))
            first += (1 - _BETA_1) * (gradient - first)
            second += (1 - _BETA_2) * (gradient * gradient - second)
            change = np.sqrt(second)
            change *= 1 / math.sqrt(scale_2)
            change += _EPSILON
            np.divide(first, change, out=change)
            change *= rate / scale_1
            self._weights[name] -= change


def choose_rate(peak: float, step: int, steps: int) -> float:
    """The learning rate of a step: up in a line over the first twentieth, then down to almost 0."""
    warm_up = max(round(steps * _WARM_UP), 1)
    cosine = (1 + math.cos(math.pi * step / steps)) / 2
    return peak * min((step + 1) / warm_up, 1) * cosine
