"""The depth axis (N-vium, arXiv 2605.13190): exits, their routers, and the mixture of them."""

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.checkpoint.names import EMBEDDINGS, LM_HEAD, early_head_name
from quatrain.exporter.reference.functions import gelu, log_softmax, multiply, rms_norm, silu
from quatrain.exporter.reference.taps import Recorder
from quatrain.exporter.reference.weights import Weights
from quatrain.exporter.spec import Backbone, Exits

__all__ = ["ExitChain"]

Floats = NDArray[np.float32]
_MIXTURE = "mixture_logprobs"


class ExitChain:
    """Takes the exits of one run in their order, and records what each says."""

    def __init__(
        self, weights: Weights, backbone: Backbone, exits: Exits, recorder: Recorder
    ) -> None:
        self._weights = weights
        self._backbone = backbone
        self._exits = exits
        self._recorder = recorder
        self._reached: Floats | np.float32 = np.float32(0)  # log-probability of no exit so far
        self._mixture: Floats | None = None

    def leave_early(self, k: int, x: Floats) -> None:
        """Exit k, from the residual stream x [B, L, H] behind its last layer."""
        epsilon = self._backbone.rms_norm_eps
        state = rms_norm(x, self._weights[f"early_norms.{k}.weight"], epsilon)
        choice = self._route(k, state)
        self._recorder.record(f"exits.{k}.state", state)
        self._recorder.record(f"exits.{k}.router_logprobs", choice)
        heads = {"own": early_head_name(k), "embeddings": EMBEDDINGS, "lm_head": self._final_head}
        adapter = None if self._exits.adapter_size is None else f"early_adapters.{k}"
        logprob = self._reached + choice[..., 1]
        self._predict(k, state, adapter, heads[self._exits.early_head], logprob)
        self._reached = self._reached + choice[..., 0]

    def leave_last(self, state: Floats) -> None:
        """The final exit, from the states [B, L, H] after the final norm; it takes what is left."""
        k = len(self._exits.layers)
        self._recorder.record(f"exits.{k}.state", state)
        adapter = None if self._exits.final_adapter_size is None else "final_adapter"
        logprob = np.asarray(self._reached, np.float32)
        self._predict(k, state, adapter, self._final_head, logprob)
        if self._mixture is not None:
            self._recorder.record(_MIXTURE, self._mixture)

    @property
    def _final_head(self) -> str:
        return EMBEDDINGS if self._backbone.tie_word_embeddings else LM_HEAD

    def _route(self, k: int, state: Floats) -> Floats:
        """log P of going on (0) and of leaving (1), [B, L, 2], from the exit's normed state."""
        for j in range(self._exits.router.num_layers):
            block = f"router_layers.{k}.layers.{j}"
            inner = gelu(self._weights.project(f"{block}.fc1", state))
            state = self._weights.project(f"{block}.fc2", inner)
        norm = self._weights[f"router_final_norms.{k}.weight"]
        normed = rms_norm(state, norm, self._backbone.rms_norm_eps)
        logits = self._weights.project(f"router_heads.{k}", normed)
        return log_softmax(logits / np.float32(self._exits.router.temperature))

    def _predict(
        self, k: int, state: Floats, adapter: str | None, head: str, logprob: Floats
    ) -> None:
        self._recorder.record(f"exits.{k}.logprob", logprob)
        if not (self._recorder.wants(f"exits.{k}.logits") or self._recorder.wants(_MIXTURE)):
            return
        if adapter is not None:
            inner = silu(self._weights.project(f"{adapter}.0", state))
            state = state + self._weights.project(f"{adapter}.2", inner)
        logits = multiply(state, self._weights[head])
        self._recorder.record(f"exits.{k}.logits", logits)
        if self._recorder.wants(_MIXTURE):
            share = logprob[..., None] + log_softmax(logits)
            before = self._mixture
            self._mixture = share if before is None else np.logaddexp(before, share)
