"""The feed-forward network: SwiGLU, or of every bank of channels only some (arXiv 2606.10722)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.reference.functions import sigmoid, silu
from quatrain.exporter.reference.weights import Weights
from quatrain.exporter.spec import BankTopK, DecoderSpec

__all__ = ["FeedForward", "choose_channels", "feed_forward"]

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class FeedForward:
    """What is added to the residual stream, [B, R, H], and the channels that took part, bool
    [B, R, d_i] (None: the layer has no choice, all do)."""

    output: Floats
    active: NDArray[np.bool_] | None


def feed_forward(
    weights: Weights,
    spec: DecoderSpec,
    layer: int,
    x: Floats,
    imposed: NDArray[np.bool_] | None = None,
) -> FeedForward:
    """The feed-forward network of a layer over normed states x [B, R, H].

    Where channels are `imposed` [B, R, d_i], these take part; `active` still has those that the
    layer would have chosen.
    """
    prefix, banks = f"model.layers.{layer}.mlp", spec.feed_forward
    u = weights.project(f"{prefix}.gate_proj", x)
    v = weights.project(f"{prefix}.up_proj", x)
    if banks is None:
        return FeedForward(weights.project(f"{prefix}.down_proj", silu(u) * v), None)
    if banks.predictor_rank is None:
        inner = silu(u) * v
        scores = np.abs(inner)
    else:
        scores = _predict(weights, prefix, banks, x)
        inner = _gate(banks, scores, u) * u * v
    active = None
    if layer not in banks.dense_fallback_layers:
        active = choose_channels(scores, banks.bank_size, banks.top_k)
        inner = np.where(active if imposed is None else imposed, inner, np.float32(0))
    return FeedForward(weights.project(f"{prefix}.down_proj", inner), active)


def choose_channels(scores: Floats, bank_size: int, top_k: int) -> NDArray[np.bool_]:
    """The `top_k` largest of every `bank_size` neighbours in [.., d_i]; of equals, the first."""
    banks = scores.reshape(*scores.shape[:-1], -1, bank_size)
    best_first = np.argsort(-banks, axis=-1, kind="stable")
    chosen = np.zeros(banks.shape, np.bool_)
    np.put_along_axis(chosen, best_first[..., :top_k], True, axis=-1)
    return chosen.reshape(scores.shape)


def _predict(weights: Weights, prefix: str, banks: BankTopK, x: Floats) -> Floats:
    hidden = weights.project(f"{prefix}.predictor.0", x)
    if banks.predictor_activation == "relu":
        hidden = np.maximum(hidden, 0)
    elif banks.predictor_activation == "silu":
        hidden = silu(hidden)
    return weights.project(f"{prefix}.predictor.1", hidden)


def _gate(banks: BankTopK, logits: Floats, u: Floats) -> Floats:
    if banks.gate_mode == "hard":
        return np.ones_like(u)
    return sigmoid(logits if banks.gate_mode == "sigmoid" else u)
