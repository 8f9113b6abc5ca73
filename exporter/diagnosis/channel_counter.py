"""Which channels of a layer are chosen, counted row by row."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.diagnosis.bundle_weights import FeedForwardWeights
from quatrain.exporter.diagnosis.report import ChannelUse
from quatrain.plugins.bank_topk_ffn.reference import predict_logits, select_channels

__all__ = ["ChannelCounter", "measure_channels"]

Activation = Literal["none", "relu", "silu"]
Array = NDArray[np.floating]


class ChannelCounter:
    """Counts what the predictor of a layer chooses, or without one what the activations do.

    Everything is computed from the layer's input and the stored weights by the operator's
    reference. The true top-k are those of `measure_channels`, whatever the gate.
    """

    def __init__(
        self,
        weights: FeedForwardWeights,
        *,
        bank_size: int,
        top_k: int,
        activation: Activation,
        num_buckets: int,
    ) -> None:
        self._weights = weights
        self._bank_size = bank_size
        self._top_k = top_k
        self._activation: Activation = activation
        self._has_predictor = "predictor.0" in weights
        self._times_chosen = np.zeros(weights["gate_proj"].shape[0], np.int64)
        self._rows = np.zeros(num_buckets, np.int64)
        self._found = np.zeros(num_buckets)

    def add(self, x: NDArray[np.float32], buckets: NDArray[np.int64]) -> None:
        """Count rows: their inputs [R, d], and the bucket of the position of each [R]."""
        # float32 and not 16 bits, in which NumPy multiplies very slowly.
        arrays = {part: tensor.read().astype(np.float32) for part, tensor in self._weights.items()}
        channels = measure_channels(x, arrays["gate_proj"], arrays["up_proj"])
        chosen = true = select_channels(channels, self._bank_size, self._top_k)
        if self._has_predictor:
            predictor = arrays["predictor.0"], arrays["predictor.1"]
            logits = predict_logits(x, *predictor, self._activation)
            chosen = select_channels(logits, self._bank_size, self._top_k)
        self._times_chosen += chosen.sum(axis=0)
        found = (chosen & true).sum(axis=-1) / true.sum(axis=-1)
        num_buckets = len(self._rows)
        self._rows += np.bincount(buckets, minlength=num_buckets)
        self._found += np.bincount(buckets, weights=found, minlength=num_buckets)

    def summarize(self) -> ChannelUse:
        """What all rows so far chose."""
        rows = int(self._rows.sum())
        recall = bucket_recall = None
        if self._has_predictor:
            recall = float(self._found.sum() / rows)
            bucket_recall = [float(share) for share in self._found / self._rows]
        return ChannelUse(
            rows=rows,
            recall=recall,
            bucket_recall=bucket_recall,
            usage_entropy=_normalize_entropy(self._times_chosen),
            never_used=int(np.sum(self._times_chosen == 0)),
            always_used=int(np.sum(self._times_chosen == rows)),
            channels=len(self._times_chosen),
        )


def measure_channels(x: Array, gate: Array, up: Array) -> NDArray[np.float32]:
    """|SiLU(u) * v| of u = W_gate x and v = W_up x: what a channel contributes, [R, d_i].

    Args:
        x: float32 [R, d].
        gate: W_gate, float32 [d_i, d].
        up: W_up, float32 [d_i, d].
    """
    u, v = x @ gate.T, x @ up.T
    with np.errstate(over="ignore"):
        return np.asarray(np.abs(u / (1 + np.exp(-u)) * v), np.float32)


def _normalize_entropy(counts: NDArray[np.int64]) -> float:
    if len(counts) == 1:
        return 1.0
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum() / np.log(len(counts)))
