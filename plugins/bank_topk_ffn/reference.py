"""What `quatrain::BankTopKFeedForward` computes, in NumPy."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["bank_topk_feed_forward", "predict_logits", "select_channels"]

Array = NDArray[np.floating]


def bank_topk_feed_forward(
    x: Array,
    predictor_0: Array,
    predictor_1: Array,
    gate: Array,
    up: Array,
    down: Array,
    *,
    bank_size: int,
    top_k: int,
    gate_mode: Literal["sigmoid", "hard", "silu"] = "sigmoid",
    predictor_activation: Literal["none", "relu", "silu"] = "none",
) -> NDArray[np.float32]:
    """Only the chosen channels of a gated feed-forward network (arXiv 2606.10722), in float32.

    With u = W_gate x, v = W_up x and the logits p = P1 act(P0 x): y = W_down (m * g * u * v), where
    m chooses channels by p and g is sigma(p), 1 or sigma(u) by `gate_mode`. The paper fixes what is
    chosen; how the gate enters is a convention (its sources leave it open).

    Args:
        x: [..., d].
        predictor_0: P0 [r, d].
        predictor_1: P1 [d_i, r].
        gate: W_gate [d_i, d].
        up: W_up [d_i, d].
        down: W_down transposed [d_i, d], so that a channel is one row of all three.

    Returns:
        float32 [..., d].
    """
    logits = predict_logits(x, predictor_0, predictor_1, predictor_activation)
    u, v = _project(x, gate), _project(x, up)
    gates = {"sigmoid": _sigmoid(logits), "hard": np.ones_like(u), "silu": _sigmoid(u)}[gate_mode]
    inner = np.where(select_channels(logits, bank_size, top_k), gates * u * v, np.float32(0))
    return inner @ down.astype(np.float32)


def predict_logits(
    x: Array,
    predictor_0: Array,
    predictor_1: Array,
    activation: Literal["none", "relu", "silu"] = "none",
) -> NDArray[np.float32]:
    """The logit of each channel [..., d_i]; NaN counts as minus infinity."""
    hidden = _project(x, predictor_0)
    if activation == "relu":
        hidden = np.maximum(hidden, 0)
    elif activation == "silu":
        hidden = hidden * _sigmoid(hidden)
    logits = _project(hidden, predictor_1)
    return np.where(np.isnan(logits), np.float32(-np.inf), logits)


def select_channels(scores: Array, bank_size: int, top_k: int) -> NDArray[np.bool_]:
    """True for the `top_k` largest scores of every bank of `bank_size` neighbours, [..., d_i].

    Of equal scores (-0.0 and 0.0 are equal) those of the lowest index; NaN counts as minus
    infinity, so that it never takes the place of a finite score.
    """
    scores = np.where(np.isnan(scores), -np.inf, scores)
    banks = scores.reshape(*scores.shape[:-1], -1, bank_size)
    order = np.argsort(-banks, axis=-1, kind="stable")[..., :top_k]
    chosen = np.zeros(banks.shape, np.bool_)
    np.put_along_axis(chosen, order, True, axis=-1)
    return chosen.reshape(scores.shape)


def _project(x: Array, weight: Array) -> NDArray[np.float32]:
    return x.astype(np.float32) @ weight.astype(np.float32).T


def _sigmoid(x: NDArray[np.float32]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)), np.float32)
