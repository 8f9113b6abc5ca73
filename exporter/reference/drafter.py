"""The time axis: guesses of the next states (HiLP, arXiv 2608.05806; NextLat, arXiv 2511.05963)."""

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.reference.functions import gelu, rms_norm, sigmoid, silu
from quatrain.exporter.reference.weights import Weights
from quatrain.exporter.spec import Drafter

__all__ = ["guess_next"]

Floats = NDArray[np.float32]


def guess_next(weights: Weights, drafter: Drafter, states: Floats, embeddings: Floats) -> Floats:
    """The states [.., H] that follow `states` if the tokens with these embeddings [.., H] do."""
    if drafter.kind == "nextlat":
        change = _run_nextlat(weights, drafter, states, embeddings)
    else:
        change = _run_hilp(weights, drafter, states, embeddings)
    return states + change if drafter.residual else change


def _run_nextlat(weights: Weights, drafter: Drafter, states: Floats, embeddings: Floats) -> Floats:
    name = "dynamics_model"
    both = np.concatenate((embeddings, states), axis=-1)
    x = rms_norm(both, weights[f"{name}.norm_x.weight"], drafter.norm_eps)
    x = gelu(weights.project(f"{name}.mlp.0", x))
    x = gelu(weights.project(f"{name}.mlp.2", x))
    return weights.project(f"{name}.mlp.4", x)


def _run_hilp(weights: Weights, drafter: Drafter, states: Floats, embeddings: Floats) -> Floats:
    name = "lower_dynamics"
    if drafter.kind == "glu_cross":
        opened = sigmoid(weights.project(f"{name}.w_e", embeddings))
        x = weights.project(f"{name}.w_h", states) * opened
    else:
        x = np.concatenate((states, embeddings), axis=-1)
    inner = silu(weights.project(f"{name}.gate", x)) * weights.project(f"{name}.up", x)
    return weights.project(f"{name}.down", inner)
