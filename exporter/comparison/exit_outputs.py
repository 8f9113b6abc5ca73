"""What the exits of a model say together: each one's logits, its probability, the mixture."""

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.comparison.trace import Trace
from quatrain.runtime.decoding.segments import Segments
from quatrain.runtime.session import Sizes

__all__ = ["add_mixture", "log_softmax", "run_head"]


def run_head(segments: Segments, k: int, states: NDArray[np.generic]) -> NDArray[np.generic]:
    """Logits of exit k [B, E, V] of its states [B, E, H]."""
    head = segments.heads[segments.layout.heads[k]]
    batch_size, rows, _ = states.shape
    head.prepare(Sizes(batch_size, outputs=rows))["exit_state"][...] = states
    return head.execute()["logits"].copy()


def add_mixture(trace: Trace, num_exits: int) -> None:
    """Add `exits.{k}.logprob`, log p_k of leaving at exit k, which is to leave there and at none
    before, and `mixture_logprobs`, logsumexp_k(log p_k + log_softmax(logits_k))."""
    reached = np.zeros(trace["exits.0.logits"].shape[:2], np.float32)
    mixture: NDArray[np.float32] | None = None
    for k in range(num_exits):
        router = trace.get(f"exits.{k}.router_logprobs")
        logprob = reached if router is None else reached + router[..., 1]
        trace[f"exits.{k}.logprob"] = logprob
        share = logprob[..., None] + log_softmax(trace[f"exits.{k}.logits"])
        mixture = share if mixture is None else np.logaddexp(mixture, share)
        if router is not None:
            reached = reached + router[..., 0]
    assert mixture is not None
    trace["mixture_logprobs"] = mixture


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Log-probabilities over the last axis, float32."""
    shifted = np.subtract(logits, logits.max(axis=-1, keepdims=True), dtype=np.float32)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return np.asarray(shifted)
