"""HiLP: states learn to foretell the next ones, token by token and a window at a time.

Method: arXiv 2608.05806. Neither code nor weights are public: tensor names are this project's
own, and so is what the paper leaves open (no norm in either dynamics, a residual around both, the
window's attention with a norm, rotary positions and no residual). Letters: B, T, C as in latent.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from samples.train.latent import GatedPredictor, LatentLlama
from samples.train.llama import (
    Attention,
    LlamaSettings,
    RMSNorm,
    build_rope,
    init_weights,
    pick_logprobs,
)


@dataclass(frozen=True, slots=True)
class HilpSettings:
    """The paper's window, predictor width and loss weights; the next token's has weight 1."""

    window: int = 4
    """Positions that one upper state spans, and tokens that the lower dynamics are rolled out."""
    multiplier: int = 4
    lower_weight: float = 10.0
    divergence_weight: float = 0.1
    upper_weight: float = 1.0
    combined_weight: float = 0.5

    def as_dict(self) -> dict[str, object]:
        """The key of config.json; widths are in the tensors."""
        return {"hilp": {"window": self.window, "drafter": "glu_cross", "residual": True}}

    def weigh(self, terms: Mapping[str, Tensor]) -> Tensor:
        """The sum that is minimised."""
        return (
            terms["next"]
            + self.lower_weight * terms["lower"]
            + self.divergence_weight * terms["divergence"]
            + self.upper_weight * terms["upper"]
            + self.combined_weight * terms["combined"]
        )


class LowerDynamics(GatedPredictor):
    """s + predictor((W_h s) * sigma(W_e e)), the kind "glu_cross"."""

    def __init__(self, width: int, multiplier: int) -> None:
        super().__init__(width, multiplier)
        self.w_h = nn.Linear(width, width, bias=False)
        self.w_e = nn.Linear(width, width, bias=False)

    def guess(self, states: Tensor, embedded: Tensor) -> Tensor:
        """Same shape as the states."""
        fused: Tensor = self.w_h(states) * self.w_e(embedded).sigmoid()
        guess: Tensor = states + self(fused)
        return guess


class WindowAttention(Attention):
    """Upper states: each attends to the last `window` lower ones, its own included."""

    def __init__(self, settings: LlamaSettings, window: int) -> None:
        super().__init__(settings)
        self.settings, self.window = settings, window
        self.norm = RMSNorm(settings.hidden_size, settings.rms_norm_eps)

    def summarise(self, states: Tensor) -> Tensor:
        """Same shape as the states [B, T, C]."""
        length = states.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        mask = causal & causal.triu(1 - self.window)
        uppers: Tensor = self(self.norm(states), build_rope(length, self.settings), mask)
        return uppers


class CombinedHead(nn.Module):
    """out((W_h s) * sigma(W_u u)): the next token from a state and an upper state."""

    def __init__(self, width: int, vocab_size: int) -> None:
        super().__init__()
        self.w_h = nn.Linear(width, width, bias=False)
        self.w_u = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, vocab_size, bias=False)

    def forward(self, states: Tensor, uppers: Tensor) -> Tensor:
        """Logits [B, T, V]."""
        logits: Tensor = self.out(self.w_h(states) * self.w_u(uppers).sigmoid())
        return logits


class HilpLlama(LatentLlama):
    """The baseline with everything HiLP adds in training; generation needs none of it."""

    def __init__(self, settings: LlamaSettings, hilp: HilpSettings) -> None:
        super().__init__(settings)
        width, self.hilp = settings.hidden_size, hilp
        self.lower_dynamics = LowerDynamics(width, hilp.multiplier)
        self.swa = WindowAttention(settings, hilp.window)
        self.upper_dynamics = GatedPredictor(width, hilp.multiplier)
        self.combined_head = CombinedHead(width, settings.vocab_size)
        init_weights(self, settings.initializer_range)

    @property
    def dynamics(self) -> nn.Module:
        """The lower dynamics."""
        return self.lower_dynamics

    def guess_states(self, states: Tensor, embedded: Tensor) -> Tensor:
        """By the lower dynamics."""
        return self.lower_dynamics.guess(states, embedded)

    def upper_loss(self, states: Tensor) -> Tensor:
        """SmoothL1 of guessed upper states, a window on, to the constant true ones."""
        uppers = self.swa.summarise(states)
        guess = uppers + self.upper_dynamics(uppers)
        window = self.hilp.window
        return functional.smooth_l1_loss(guess[:, :-window], uppers[:, window:].detach())

    def loss_terms(self, tokens: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """The five terms, unweighted."""
        states = self.compute_states(tokens)
        lower, divergence = self.latent_losses(states, tokens, self.hilp.window)
        # This summary must not shape the states it is made of; the head's other input may.
        constant_uppers = self.swa.summarise(states.detach())
        combined = self.combined_head(states, constant_uppers)
        return {
            "next": -pick_logprobs(self.lm_head(states), targets).mean(),
            "lower": lower,
            "divergence": divergence,
            "upper": self.upper_loss(states),
            "combined": -pick_logprobs(combined, targets).mean(),
        }

    def compute_loss(self, tokens: Tensor, targets: Tensor, progress: float) -> Tensor:
        """All five terms at any progress."""
        return self.hilp.weigh(self.loss_terms(tokens, targets))
