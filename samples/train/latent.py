"""Latent dynamics: from a state and the next token's embedding to a guess of the next state.

Shared by HiLP (arXiv 2608.05806) and NextLat (arXiv 2511.05963). A state is what the head reads:
the last layer's output behind the last norm. Letters in shapes: B batch, T tokens, C hidden.
"""

from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from samples.train.llama import DenseLlama


class LatentLlama(DenseLlama):
    """The baseline and dynamics that guess its next states; alone, it is the baseline."""

    @property
    @abstractmethod
    def dynamics(self) -> nn.Module:
        """What the guesses are made by, beside the embeddings and the head."""

    @abstractmethod
    def guess_states(self, states: Tensor, embedded: Tensor) -> Tensor:
        """The states [B, T, C] one token on, given that token's embedding [B, T, C]."""

    def roll_out(self, states: Tensor, tokens: Tensor, steps: int) -> Iterator[Tensor]:
        """Guesses 1, .., `steps` tokens on: [B, T - j, C] after j, entry t for state t + j.

        Every guess is made from the one before; only the tokens [B, T] are true.
        """
        embedded = self.model.embed_tokens(tokens)
        for step in range(1, steps + 1):
            states = self.guess_states(states[:, :-1], embedded[:, step:])
            yield states

    def latent_losses(self, states: Tensor, tokens: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """How far guesses are from the states, and their predictions from the states' own.

        SmoothL1 and KL(true || guessed), each a mean over the roll-out. True states, true
        predictions and the head are constants to the gradient.
        """
        with torch.no_grad():
            truth = self.lm_head(states).log_softmax(dim=-1)
        head = self.lm_head.weight.detach()
        state_losses, token_losses = [], []
        for step, guess in enumerate(self.roll_out(states, tokens, steps), start=1):
            state_losses.append(functional.smooth_l1_loss(guess, states[:, step:].detach()))
            logprobs = functional.linear(guess, head).log_softmax(dim=-1)
            token_losses.append(mean_divergence(truth[:, step:], logprobs))
        return torch.stack(state_losses).mean(), torch.stack(token_losses).mean()


def mean_divergence(truth: Tensor, guess: Tensor) -> Tensor:
    """KL(truth || guess) of log probabilities [.., V], a mean over all but the last axis."""
    return functional.kl_div(guess, truth, reduction="none", log_target=True).sum(-1).mean()


class GatedPredictor(nn.Module):
    """down(SiLU(gate(x)) * up(x)), from C to C by way of `multiplier` * C."""

    def __init__(self, width: int, multiplier: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, multiplier * width, bias=False)
        self.up = nn.Linear(width, multiplier * width, bias=False)
        self.down = nn.Linear(multiplier * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as x."""
        output: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return output
