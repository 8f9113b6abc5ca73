"""What one would run without our kernels: plain PyTorch for each operator, at its best."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks._kernel_cases import AttentionCase, Case, FeedForwardCase, RouterCase

__all__ = ["Alternative", "list_alternatives"]

Alternative = Callable[[], list[Tensor]]


def list_alternatives(case: Case, inputs: Sequence[Tensor]) -> Mapping[str, Alternative]:
    """Ways to do the same on the same inputs, by name; the best of them is what counts.

    For a bank-top-k network that is a dense one of the same sizes: it does not compute the same.
    """
    if isinstance(case, AttentionCase):
        return _list_attentions(case, inputs)
    if isinstance(case, FeedForwardCase):
        return _list_feed_forwards(inputs)
    return {"unfused router": lambda: _route(case, inputs)}


def _list_attentions(case: AttentionCase, inputs: Sequence[Tensor]) -> Mapping[str, Alternative]:
    """SDPA over the live part of the cache. Needs queries that end it, as `make_inputs` makes."""
    query, keys, values = inputs[0], inputs[1], inputs[2]
    keys, values = keys[:, :, : case.live], values[:, :, : case.live]
    if case.tokens > 1:
        # `is_causal` without a mask says the right thing for a whole prompt alone.
        mask = None if case.tokens == case.live else inputs[4]
        return {
            "SDPA": lambda: [
                functional.scaled_dot_product_attention(
                    query, keys, values, mask, is_causal=mask is None, enable_gqa=True
                )
            ]
        }
    batch, heads, _, head_dim = query.shape
    # One query a head sees every key: the heads of a group may stand for tokens.
    folded = query.view(batch, keys.shape[1], -1, head_dim)
    return {
        "SDPA": lambda: [
            functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)
        ],
        "SDPA, heads folded": lambda: [
            functional.scaled_dot_product_attention(folded, keys, values).view(
                batch, heads, 1, head_dim
            )
        ],
    }


def _list_feed_forwards(inputs: Sequence[Tensor]) -> Mapping[str, Alternative]:
    x, gate, up = inputs[0], inputs[3], inputs[4]
    down = inputs[5].t().contiguous()
    both = torch.cat((gate, up))

    def run_apart() -> list[Tensor]:
        inner = functional.silu(functional.linear(x, gate)) * functional.linear(x, up)
        return [functional.linear(inner, down)]

    def run_merged() -> list[Tensor]:
        u, v = functional.linear(x, both).chunk(2, dim=-1)
        return [functional.linear(functional.silu(u) * v, down)]

    return {"dense FFN": run_apart, "dense FFN, gate and up merged": run_merged}


def _route(case: RouterCase, inputs: Sequence[Tensor]) -> list[Tensor]:
    hidden, norm_weight = inputs[:2]
    router_norm_weight, head_weight, head_bias = inputs[-3:]
    normed = state = functional.rms_norm(hidden, (case.hidden,), norm_weight, eps=1e-6)
    for j in range(2, len(inputs) - 3, 4):
        fc1_weight, fc1_bias, fc2_weight, fc2_bias = inputs[j : j + 4]
        inner = functional.gelu(functional.linear(state, fc1_weight, fc1_bias))
        state = functional.linear(inner, fc2_weight, fc2_bias)
    state = functional.rms_norm(state, (case.router,), router_norm_weight, eps=1e-6)
    logits = functional.linear(state, head_weight, head_bias).float() / case.temperature
    return [normed, functional.log_softmax(logits, dim=-1)]
