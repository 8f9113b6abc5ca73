"""N-vium: a Llama with early exits whose heads are mixed by learned routers.

Formulas: arXiv 2605.13190. Tensor names and settings: the public layout of ETH-DISCO/n-vium.
Letters in names: K exits counting the final one, B batch, T positions, C hidden, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from samples.train.llama import (
    Backbone,
    LanguageModel,
    LlamaSettings,
    RMSNorm,
    init_weights,
    pick_logprobs,
)

MIN_EXIT_PROB = 1e-8


@dataclass(frozen=True, slots=True)
class NviumSettings:
    """Exits, routers and loss weights on top of a backbone.

    The paper's grid has warmup_ratio 0.05 and, in effect, a pull of 1. On a text this small those
    leave two exits dead: early heads need longer under even shares before routers may choose.
    """

    early_layer_idx: tuple[int, ...] = (2, 4, 6)
    router_intermediate_size: int = 32
    router_head_init_std: float = 0.1
    warmup_ratio: float = 0.4
    pull_weight: float = 5.0
    compute_weight: float = 0.15

    def __post_init__(self) -> None:
        if list(self.early_layer_idx) != sorted(set(self.early_layer_idx)):
            raise ValueError(f"exits {self.early_layer_idx} must increase")


@dataclass(frozen=True, slots=True)
class Exits:
    """What the cascade computes for every position; fields are [K, B, T]."""

    exit_probs: Tensor
    """p_k; sums to one over K."""
    conditional_probs: Tensor
    """Chance to leave at k when k was reached [K - 1, B, T]; the final exit has no router."""
    logprobs: Tensor
    """log p(target) of each head alone."""


class RouterBlock(nn.Module):
    """fc2(GELU(fc1(x))), no residual."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, inner)
        self.fc2 = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as x."""
        output: Tensor = self.fc2(functional.gelu(self.fc1(x)))
        return output


class RouterBody(nn.Module):
    """The chain of blocks in front of a router's norm and head."""

    def __init__(self, width: int, inner: int, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(RouterBlock(width, inner) for _ in range(num_layers))

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as x."""
        for layer in self.layers:
            x = layer(x)
        return x


def build_adapter(width: int) -> nn.Sequential:
    """W2 SiLU(W1 x), added to its input by the caller."""
    return nn.Sequential(
        nn.Linear(width, width, bias=False), nn.SiLU(), nn.Linear(width, width, bias=False)
    )


class NviumLlama(LanguageModel):
    """Backbone, early exits with adapters and routers, and one head that all exits share."""

    def __init__(self, settings: LlamaSettings, nvium: NviumSettings) -> None:
        super().__init__()
        width, num_early = settings.hidden_size, len(nvium.early_layer_idx)
        eps, inner = settings.rms_norm_eps, nvium.router_intermediate_size
        self.depth, self.nvium = settings.num_hidden_layers, nvium
        self.model = Backbone(settings)
        self.lm_head = nn.Linear(width, settings.vocab_size, bias=False)
        self.final_adapter = build_adapter(width)
        self.early_norms = nn.ModuleList(RMSNorm(width, eps) for _ in range(num_early))
        self.early_adapters = nn.ModuleList(build_adapter(width) for _ in range(num_early))
        self.router_layers = nn.ModuleList(RouterBody(width, inner, 1) for _ in range(num_early))
        self.router_final_norms = nn.ModuleList(RMSNorm(width, eps) for _ in range(num_early))
        self.router_heads = nn.ModuleList(nn.Linear(width, 2) for _ in range(num_early))
        init_weights(self, settings.initializer_range)
        for head in self.router_heads:
            nn.init.normal_(head.get_parameter("weight"), std=nvium.router_head_init_std)

    def exit_states(self, tokens: Tensor) -> list[Tensor]:
        """Normed states [B, T, C] at each exit, the final one last."""
        states = self.model.run_layers(tokens)
        early = zip(self.early_norms, self.nvium.early_layer_idx, strict=True)
        return [norm(states[i]) for norm, i in early] + [self.model.norm(states[-1])]

    def router_logprobs(self, exit: int, state: Tensor) -> Tensor:
        """log of (continue, exit) [B, T, 2], read from the normed state before the adapter."""
        hidden = self.router_final_norms[exit](self.router_layers[exit](state))
        return functional.log_softmax(self.router_heads[exit](hidden), dim=-1)

    def run_exits(self, tokens: Tensor, targets: Tensor) -> Exits:
        """Run all layers and every head."""
        states = self.exit_states(tokens)
        adapters = [*self.early_adapters, self.final_adapter]
        logprobs = [
            pick_logprobs(self.lm_head(state + adapter(state)), targets)
            for state, adapter in zip(states, adapters, strict=True)
        ]
        routes = torch.stack([self.router_logprobs(k, s) for k, s in enumerate(states[:-1])])
        conditional = routes[..., 1].exp()
        return Exits(chain_exit_probs(conditional), conditional, torch.stack(logprobs))

    def exit_depths(self) -> Tensor:
        """Share of the layers run at each exit [K]; the final one is 1."""
        return torch.tensor([*self.nvium.early_layer_idx, self.depth]) / self.depth

    def target_logprobs(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """log p_mix(target)."""
        exits = self.run_exits(tokens, targets)
        return mix_logprobs(exits.exit_probs, exits.logprobs)

    def compute_loss(self, tokens: Tensor, targets: Tensor, progress: float) -> Tensor:
        """Mixture NLL, plus an even pull on the routers early on and a price on depth later."""
        exits = self.run_exits(tokens, targets)
        loss = -mix_logprobs(exits.exit_probs, exits.logprobs).mean()
        if progress < self.nvium.warmup_ratio:
            return loss + self.nvium.pull_weight * pull_even(exits.conditional_probs)
        depth = mean_depth(exits.exit_probs, self.exit_depths())
        return loss + self.nvium.compute_weight * depth


def chain_exit_probs(conditional: Tensor) -> Tensor:
    """p_k = exit_k * prod_{j<k} (1 - exit_j); the final exit takes the rest. Adds one to K."""
    reached = torch.ones_like(conditional[0])
    probs = []
    for exit_prob in conditional:
        probs.append(reached * exit_prob)
        reached = reached * (1 - exit_prob)
    return torch.stack([*probs, reached])


def mix_logprobs(exit_probs: Tensor, logprobs: Tensor) -> Tensor:
    """log p_mix(y) = logsumexp_k(log p_k + log p(y | k)) [B, T], p_k clamped to [1e-8, 1]."""
    weights = exit_probs.clamp(MIN_EXIT_PROB, 1.0).log()
    return torch.logsumexp(weights + logprobs, dim=0)


def pull_even(conditional: Tensor) -> Tensor:
    """Mean squared distance of exit_k from 1 / (N - k), N exits: even shares for all."""
    num_early = conditional.shape[0]
    even = 1 / torch.arange(num_early + 1, 1, -1)
    return (conditional - even[:, None, None]).square().mean()


def mean_depth(exit_probs: Tensor, depths: Tensor) -> Tensor:
    """Expected share of the layers run: mean of sum_k p_k * early_layer_idx_k / L."""
    return (exit_probs * depths[:, None, None]).sum(dim=0).mean()
