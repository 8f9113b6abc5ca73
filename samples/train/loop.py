"""The training loop: AdamW, warm-up, cosine."""

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from samples.train.batches import sample_batches
from samples.train.llama import LanguageModel


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Budget and optimizer; models that go on from another take a share (`Recipe.adapt_loop`)."""

    steps: int
    seed: int
    tokens_per_step: int = 2048
    lengths: tuple[int, ...] = (256, 256, 512, 1024)
    learning_rate: float = 3e-3
    min_learning_rate: float = 3e-4
    warmup_ratio: float = 0.05
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps is {self.steps}; give at least 1")


def learning_rate_at(step: int, settings: LoopSettings) -> float:
    """Linear warm-up, then a cosine down to the minimum."""
    warmup = max(1, round(settings.warmup_ratio * settings.steps))
    if step < warmup:
        return settings.learning_rate * (step + 1) / warmup
    done = (step - warmup) / max(1, settings.steps - warmup)
    swing = settings.learning_rate - settings.min_learning_rate
    return settings.min_learning_rate + swing * (1 + math.cos(math.pi * done)) / 2


def build_optimizer(model: nn.Module, settings: LoopSettings) -> torch.optim.AdamW:
    """AdamW that decays matrices only."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.95))


def train_model(
    model: LanguageModel,
    stream: Tensor,
    settings: LoopSettings,
    report: Callable[[int, float, float], None],
) -> None:
    """Train in place; `report` gets (step, mean loss since the last report, seconds) 20 times."""
    optimizer = build_optimizer(model, settings)
    batches = sample_batches(stream, settings.lengths, settings.tokens_per_step, settings.seed)
    every = max(1, settings.steps // 20)
    losses: list[float] = []
    start = time.monotonic()
    for step, (tokens, targets) in enumerate(itertools.islice(batches, settings.steps)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(step, settings)
        loss = model.compute_loss(tokens, targets, step / settings.steps)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % every == 0 or step + 1 == settings.steps:
            report(step + 1, sum(losses) / len(losses), time.monotonic() - start)
            losses.clear()
