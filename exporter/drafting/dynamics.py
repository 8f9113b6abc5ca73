"""HiLP's low-level dynamics `glu_cross` (arXiv 2608.05806, appendix D), forward and backward.

From the state h and the embedding e of the token that follows to a guess of the next state:

    g = (W_h h) * sigmoid(W_e e),    f(h, e) = h + W_down (SiLU(W_gate g) * (W_up g)).

The gradients are written by hand: the exporter does without torch.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["WEIGHT_NAMES", "Passed", "Weights", "begin_weights", "guess_next", "pass_back"]

Floats = NDArray[np.floating]
Weights = dict[str, Floats]
"""w_h [d, d], w_e [d, d], gate [m, d], up [m, d], down [d, m]."""

WEIGHT_NAMES = ("w_h", "w_e", "gate", "up", "down")


@dataclass(frozen=True, slots=True)
class Passed:
    """One step of a batch, with what its gradients are made from; arrays are [B, d] or [B, m]."""

    states: Floats
    embeddings: Floats
    projected: Floats  # W_h h
    opening: Floats  # sigmoid(W_e e)
    mixed: Floats  # g
    gate: Floats  # W_gate g
    up: Floats  # W_up g
    sigmoid: Floats  # of `gate`
    product: Floats  # SiLU(gate) * up
    next_states: Floats


def begin_weights(hidden_size: int, inner_size: int, rng: np.random.Generator) -> Weights:
    """Where training begins, for states and embeddings with mean squares near 1: the guess is
    that nothing changes."""

    def draw(rows: int) -> NDArray[np.float32]:
        numbers = rng.standard_normal((rows, hidden_size), np.float32)
        return numbers / np.float32(np.sqrt(hidden_size))

    return {
        "w_h": draw(hidden_size),
        "w_e": draw(hidden_size),
        "gate": draw(inner_size),
        "up": draw(inner_size),
        "down": np.zeros((hidden_size, inner_size), np.float32),
    }


def guess_next(weights: Weights, states: Floats, embeddings: Floats) -> Passed:
    """One step from states [B, d] over embeddings [B, d]."""
    projected = states @ weights["w_h"].T
    opening = _sigmoid(embeddings @ weights["w_e"].T)
    mixed = projected * opening
    gate = mixed @ weights["gate"].T
    up = mixed @ weights["up"].T
    sigmoid = _sigmoid(gate)
    product = gate * sigmoid * up
    next_states = states + product @ weights["down"].T
    return Passed(
        states, embeddings, projected, opening, mixed, gate, up, sigmoid, product, next_states
    )


def pass_back(weights: Weights, passed: Passed, slope: Floats) -> tuple[Weights, Floats]:
    """The gradients of a loss: of the weights, and of the states that the step began from [B, d].

    Args:
        slope: Its gradient of `passed.next_states`.
    """
    product = slope @ weights["down"]
    silu = passed.gate * passed.sigmoid
    up = product * silu
    # SiLU'(x) = sigmoid(x) + SiLU(x) * (1 - sigmoid(x))
    gate = product * passed.up * (passed.sigmoid + silu * (1 - passed.sigmoid))
    mixed = gate @ weights["gate"] + up @ weights["up"]
    projected = mixed * passed.opening
    opening = projected * passed.projected * (1 - passed.opening)
    gradients: Weights = {
        "w_h": projected.T @ passed.states,
        "w_e": opening.T @ passed.embeddings,
        "gate": gate.T @ passed.mixed,
        "up": up.T @ passed.mixed,
        "down": slope.T @ passed.product,
    }
    return gradients, slope + projected @ weights["w_h"]


def _sigmoid(x: Floats) -> Floats:
    # exp may overflow to infinity, and the result is then the 0 that it should be.
    with np.errstate(over="ignore"):
        result: Floats = 1 / (1 + np.exp(-x))
    return result
