"""The dynamics' second training: alone, beside a frozen model, on text that the model writes.

Drafts are made of what the model itself says, which is more alike than the text it learnt from; and
of a corpus this small the dynamics have seen little. What the model says stays the same.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from samples.train.batches import open_windows
from samples.train.continuation import continue_text
from samples.train.latent import LatentLlama


@dataclass(frozen=True, slots=True)
class RefineSettings:
    """The text, and how it is learnt from.

    As many texts are written at each temperature, behind prompts from the training text; a batch
    is a stretch of several of them, rolled out from each of its positions.
    """

    steps: int = 1200
    texts: int = 512
    prompt_length: int = 64
    count: int = 128
    temperatures: tuple[float, ...] = (0.0, 0.5)
    texts_at_once: int = 64
    rows: int = 16
    stretch: int = 64
    horizon: int = 4
    learning_rate: float = 2e-3
    warmup_steps: int = 50
    state_weight: float = 0.5
    """Of the SmoothL1 of states; the divergence of predictions has weight 1."""
    max_grad_norm: float = 1.0

    def take_share(self, share: float) -> "RefineSettings":
        """So much of the steps and of the texts, one at least."""
        steps, texts = (max(1, round(share * whole)) for whole in (self.steps, self.texts))
        return replace(self, steps=steps, texts=texts)


def write_texts(
    model: LatentLlama, stream: Tensor, settings: RefineSettings, generator: torch.Generator
) -> Tensor:
    """Prompts and what the model writes behind them, [N, prompt_length + count]."""
    length, written = settings.prompt_length, []
    for temperature in settings.temperatures:
        starts = torch.randint(len(stream) - length + 1, (settings.texts,), generator=generator)
        windows = torch.stack([stream[s : s + length] for s in starts.tolist()])
        for prompts in torch.split(open_windows(windows)[0], settings.texts_at_once):
            written.append(continue_text(model, prompts, settings.count, temperature, generator))
    return torch.cat(written)


@torch.no_grad()
def collect_states(model: LatentLlama, texts: Tensor, rows: int) -> Tensor:
    """What the head reads at each token, [N, T, C]."""
    return torch.cat([model.compute_states(part) for part in torch.split(texts, rows)])


def sample_stretches(
    texts: Tensor, states: Tensor, settings: RefineSettings, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches: tokens [rows, stretch + horizon] from one place in some texts, and states
    [rows, stretch + horizon, C]."""
    length = settings.stretch + settings.horizon
    while True:
        picked = torch.randint(len(texts), (settings.rows,), generator=generator)
        start = int(torch.randint(texts.shape[1] - length + 1, (1,), generator=generator))
        yield texts[picked, start : start + length], states[picked, start : start + length]


def rate_at(step: int, settings: RefineSettings) -> float:
    """Linear warm-up under a cosine down to nothing."""
    warm = min(1.0, (step + 1) / settings.warmup_steps)
    return settings.learning_rate * warm * (1 + math.cos(math.pi * step / settings.steps)) / 2


def refine_dynamics(
    model: LatentLlama,
    stream: Tensor,
    settings: RefineSettings,
    seed: int,
    report: Callable[[int, float, float], None],
) -> None:
    """Train in place what drafts, and nothing else; `report` as in `train_model`."""
    generator, start = torch.Generator().manual_seed(seed), time.monotonic()
    texts = write_texts(model, stream, settings, generator)
    states = collect_states(model, texts, settings.rows)
    model.requires_grad_(False)
    parameters = list(model.dynamics.requires_grad_().parameters())
    optimizer = torch.optim.AdamW(parameters, betas=(0.9, 0.98), weight_decay=0.01)
    batches = sample_stretches(texts, states, settings, generator)
    every = max(1, settings.steps // 10)
    losses: list[float] = []
    for step, (tokens, truth) in enumerate(itertools.islice(batches, settings.steps)):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, settings)
        far, apart = model.latent_losses(truth, tokens, settings.horizon)
        loss = settings.state_weight * far + apart
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm)
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % every == 0 or step + 1 == settings.steps:
            report(step + 1, sum(losses) / len(losses), time.monotonic() - start)
            losses.clear()
