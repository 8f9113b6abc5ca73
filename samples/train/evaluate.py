"""Held-out numbers: perplexity, bits per byte, and where an N-vium leaves its layers."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from samples.train.batches import consecutive_windows
from samples.train.llama import LanguageModel
from samples.train.nvium import NviumLlama

EVAL_LENGTH = 256
EVAL_ROWS = 16


@dataclass(frozen=True, slots=True)
class TextScore:
    """Mean negative log likelihood of a text, per token and per byte."""

    perplexity: float
    bits_per_byte: float


@dataclass(frozen=True, slots=True)
class ExitReport:
    """Shares of tokens by exit, the final exit last; depth is a share of the layers."""

    mixture_shares: tuple[float, ...]
    argmax_shares: tuple[float, ...]
    mixture_depth: float
    argmax_depth: float
    argmax_perplexity: float
    head_perplexities: tuple[float, ...]


@torch.no_grad()
def score_text(model: LanguageModel, ids: Tensor, num_bytes: int) -> TextScore:
    """Score ids [N] in windows of 256 targets, each window after BOS and nothing else."""
    windows = consecutive_windows(ids, EVAL_LENGTH, EVAL_ROWS)
    nll = -sum(float(model.target_logprobs(*pair).sum()) for pair in windows)
    return TextScore(math.exp(nll / len(ids)), nll / math.log(2) / num_bytes)


def route_argmax(conditional: Tensor) -> Tensor:
    """Exit index [B, T]: the first that is likelier than going on (a tie goes on)."""
    leaves = functional.pad(conditional > 0.5, (0, 0, 0, 0, 0, 1), value=True)
    return leaves.int().argmax(dim=0)


@torch.no_grad()
def report_exits(model: NviumLlama, ids: Tensor) -> ExitReport:
    """Means over the same windows as `score_text`."""
    windows = consecutive_windows(ids, EVAL_LENGTH, EVAL_ROWS)
    exits = [model.run_exits(*pair) for pair in windows]
    probs = torch.cat([e.exit_probs.flatten(1) for e in exits], dim=1)
    logprobs = torch.cat([e.logprobs.flatten(1) for e in exits], dim=1)
    routes = torch.cat([route_argmax(e.conditional_probs).flatten() for e in exits])
    mixture = probs.mean(dim=1)
    argmax = torch.bincount(routes, minlength=len(mixture)) / len(routes)
    routed = logprobs.gather(0, routes[None]).squeeze(0)
    depths = model.exit_depths()
    return ExitReport(
        mixture_shares=tuple(mixture.tolist()),
        argmax_shares=tuple(argmax.tolist()),
        mixture_depth=float(mixture @ depths),
        argmax_depth=float(argmax @ depths),
        argmax_perplexity=math.exp(-float(routed.mean())),
        head_perplexities=tuple((-logprobs.mean(dim=1)).exp().tolist()),
    )
