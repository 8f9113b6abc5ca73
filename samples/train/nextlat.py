"""NextLat: the baseline learns to foretell its next states by an MLP.

Method: arXiv 2511.05963, whose code fixes what differs from a Llama: every end-of-text token opens
a document, and attention never leaves one; norms have eps 1e-5.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from samples.train.latent import LatentLlama
from samples.train.llama import (
    Backbone,
    LlamaSettings,
    RMSNorm,
    init_weights,
    pick_logprobs,
)
from samples.train.tokenizer import EOS_ID

NORM_EPS = 1e-5
WIDTH_UNIT = 128


@dataclass(frozen=True, slots=True)
class NextLatSettings:
    """Weights of the losses, tokens of roll-out in training, and the MLP's relative width."""

    lambda_ce: float = 1.0
    lambda_mse: float = 1.0
    lambda_kl: float = 1.0
    mtp_horizon: int = 4
    proj_factor: float = 1.0

    def inner_size(self, width: int) -> int:
        """Of the MLP over `width` * 2 inputs: a multiple of 128."""
        return WIDTH_UNIT * round(self.proj_factor * 2 * width / WIDTH_UNIT)


class MlpDynamics(nn.Module):
    """s + mlp(norm([e; s])), the embedding first."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm_x = RMSNorm(2 * width, NORM_EPS)
        self.mlp = nn.Sequential(
            nn.Linear(2 * width, inner, bias=False),
            nn.GELU(),
            nn.Linear(inner, inner, bias=False),
            nn.GELU(),
            nn.Linear(inner, width, bias=False),
        )

    def forward(self, states: Tensor, embedded: Tensor) -> Tensor:
        """Same shape as the states."""
        output: Tensor = states + self.mlp(self.norm_x(torch.cat((embedded, states), dim=-1)))
        return output


def mask_documents(tokens: Tensor) -> Tensor:
    """[B, 1, T, T], True where a row may look: back to the last end-of-text at or before it.

    The code also counts positions from there; rotary scores only know differences of positions.
    """
    document = (tokens == EOS_ID).cumsum(dim=1)
    same = document[:, :, None] == document[:, None, :]
    return same.tril()[:, None]


class DocumentBackbone(Backbone):
    """The backbone with attention inside documents only."""

    def build_mask(self, tokens: Tensor) -> Tensor:
        """See `mask_documents`."""
        return mask_documents(tokens)


class NextLatLlama(LatentLlama):
    """The baseline over documents, with NextLat's dynamics."""

    def __init__(self, settings: LlamaSettings, nextlat: NextLatSettings) -> None:
        super().__init__(settings, DocumentBackbone(replace(settings, rms_norm_eps=NORM_EPS)))
        width, self.nextlat = settings.hidden_size, nextlat
        self.dynamics_model = MlpDynamics(width, nextlat.inner_size(width))
        init_weights(self, settings.initializer_range)

    @property
    def dynamics(self) -> nn.Module:
        """The MLP."""
        return self.dynamics_model

    def guess_states(self, states: Tensor, embedded: Tensor) -> Tensor:
        """By the MLP."""
        guess: Tensor = self.dynamics_model(states, embedded)
        return guess

    def compute_loss(self, tokens: Tensor, targets: Tensor, progress: float) -> Tensor:
        """Cross entropy, SmoothL1 of states ("mse" in the settings' names), KL of predictions."""
        states, nextlat = self.compute_states(tokens), self.nextlat
        entropy = -pick_logprobs(self.lm_head(states), targets).mean()
        state_loss, divergence = self.latent_losses(states, tokens, nextlat.mtp_horizon)
        return (
            nextlat.lambda_ce * entropy
            + nextlat.lambda_mse * state_loss
            + nextlat.lambda_kl * divergence
        )
