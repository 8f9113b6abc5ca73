"""How far a deployed graph may be from the checkpoint: the one table that says so.

Errors are the largest absolute difference divided by the largest magnitude of the reference's
tensor; of log-probabilities, whose magnitude may be near zero, they are never divided by less than
1 nat. float32 graphs differ from the reference by the order of their sums only. float16 keeps 11
bits of a number and bfloat16 8, and what they lose adds up over the layers: their numbers were
measured on the sample models, the golden ones and SmolLM2-135M, and leave room for about twice the
worst of them.
"""

from dataclasses import dataclass
from typing import Literal

__all__ = ["TOLERANCES", "Kind", "Tolerances", "find_kind"]

Kind = Literal["logits", "log_probs", "state", "residual", "cache", "draft", "selection"]


@dataclass(frozen=True, slots=True)
class Tolerances:
    """What one compute type is allowed.

    Attributes:
        logits: Logits of the decoder and of every exit, relative.
        log_probs: Log-probabilities of exits, of routers and of the mixture, relative.
        state: Normed states, those that heads read, relative.
        residual: The residual stream behind the embedding and within and behind a layer, relative.
        cache: Keys and values, relative.
        draft: States and logits that a drafter rolled out, relative.
        selection: The share of the reference's active channels that must be active, at least.
        tie: A token that the reference finds less likely than its first by no more than this, in
            nats, is as good: rounding decides between the two.
        top1: The share of positions at which the most likely token must be the same or as good, and
            of generated tokens, at least.
        kl_mean: Mean KL divergence from the reference, in nats.
        kl_max: The largest at any position.
        perplexity: Difference of the perplexities, divided by the reference's.
        exit_share: Difference of the share of tokens that leave at an exit.
    """

    logits: float
    log_probs: float
    state: float
    residual: float
    cache: float
    draft: float
    selection: float
    tie: float
    top1: float
    kl_mean: float
    kl_max: float
    perplexity: float
    exit_share: float


TOLERANCES = {
    "float32": Tolerances(
        logits=1e-4,
        log_probs=1e-4,
        state=1e-4,
        residual=1e-4,
        cache=1e-4,
        draft=1e-4,
        selection=0.999,
        tie=1e-5,
        top1=1.0,
        kl_mean=1e-6,
        kl_max=1e-5,
        perplexity=1e-4,
        exit_share=1e-4,
    ),
    "float16": Tolerances(
        logits=0.015,
        log_probs=0.01,
        state=0.015,
        residual=0.015,
        cache=0.025,
        draft=0.015,
        selection=0.99,
        tie=0.05,
        top1=0.98,
        kl_mean=1e-4,
        kl_max=1e-3,
        perplexity=0.003,
        exit_share=2e-3,
    ),
    "bfloat16": Tolerances(
        logits=0.12,
        log_probs=0.06,
        state=0.13,
        residual=0.13,
        cache=0.2,
        draft=0.13,
        selection=0.97,
        tie=0.4,
        top1=0.95,
        kl_mean=4e-3,
        kl_max=0.03,
        perplexity=0.025,
        exit_share=0.01,
    ),
}


def find_kind(tensor: str) -> Kind:
    """The kind of a tensor, by the name that the reference gives it."""
    last = tensor.rpartition(".")[2]
    if tensor.startswith("draft."):
        return "draft"
    if tensor.startswith(("key_cache.", "value_cache.")):
        return "cache"
    if last == "active_channels":
        return "selection"
    if last in ("attention", "output", "embedding"):
        return "residual"
    if last in ("logprob", "router_logprobs", "mixture_logprobs"):
        return "log_probs"
    return "logits" if last == "logits" else "state"
