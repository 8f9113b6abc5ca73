"""The bank-top-k feed-forward network in plain torch, to put in the place of a transformers MLP.

A channel is in if fewer than `top_k` channels of its bank beat it: no sorting, and no order to
depend on.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ACTIVATIONS = {None: nn.Identity, "relu": nn.ReLU, "silu": nn.SiLU}


@dataclass(frozen=True)
class Banks:
    bank_size: int = 8
    top_k: int = 3
    predictor_rank: int | None = 5
    gate_mode: str = "sigmoid"
    predictor_activation: str | None = None
    dense_fallback_layers: list[int] = field(default_factory=list)

    def config(self) -> dict[str, Any]:
        return {"bank_topk": dict(vars(self))}


def choose_channels(scores: Tensor, banks: Banks) -> Tensor:
    """1.0 for the chosen channels of scores [.., d_i], else 0.0."""
    split = scores.unflatten(-1, (-1, banks.bank_size))
    index = torch.arange(banks.bank_size)
    mine, other = split[..., :, None], split[..., None, :]
    beats = (other > mine) | ((other == mine) & (index[None, :] < index[:, None]))
    return (beats.sum(-1) < banks.top_k).float().flatten(-2)


class SparseFeedForward(nn.Module):
    """Takes over the projections of a Llama MLP; `predictor.0` and `predictor.1` are new."""

    def __init__(self, mlp: nn.Module, banks: Banks, layer: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = mlp.gate_proj, mlp.up_proj, mlp.down_proj
        self.banks = banks
        self.is_dense = layer in banks.dense_fallback_layers
        if banks.predictor_rank is not None:
            inner, hidden = self.gate_proj.weight.shape
            self.predictor = nn.Sequential(
                nn.Linear(hidden, banks.predictor_rank, bias=False),
                nn.Linear(banks.predictor_rank, inner, bias=False),
            )
            # A few channels tie exactly, in the middle of where banks are cut.
            with torch.no_grad():
                self.predictor[1].weight[::3] = 0.0

    def forward(self, x: Tensor) -> Tensor:
        u, v = self.gate_proj(x), self.up_proj(x)
        if self.banks.predictor_rank is None:
            inner = functional.silu(u) * v
            chosen = choose_channels(inner.abs(), self.banks)
        else:
            hidden = ACTIVATIONS[self.banks.predictor_activation]()(self.predictor[0](x))
            logits = self.predictor[1](hidden)
            gates = {
                "sigmoid": logits.sigmoid(),
                "hard": torch.ones_like(u),
                "silu": u.sigmoid(),
            }
            inner = gates[self.banks.gate_mode] * u * v
            chosen = choose_channels(logits, self.banks)
        return self.down_proj(inner if self.is_dense else inner * chosen)


def make_sparse(model: nn.Module, banks: Banks) -> None:
    """Replace every MLP of a transformers decoder."""
    for layer, module in enumerate(model.model.layers):
        module.mlp = SparseFeedForward(module.mlp, banks, layer)
