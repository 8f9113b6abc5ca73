"""Sample models of a few numbers, and tokens for them."""

import torch

from samples.train.llama import LlamaSettings
from samples.train.nvium import NviumLlama, NviumSettings

TINY = LlamaSettings(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=4)
TINY_NVIUM = NviumSettings((1, 3), router_intermediate_size=8, pull_weight=2, compute_weight=0.3)


def build_tiny() -> NviumLlama:
    torch.manual_seed(0)
    return NviumLlama(TINY, TINY_NVIUM)


def draw_tokens() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(32, (2, 8), generator=torch.Generator().manual_seed(1))
    return ids[:, :-1], ids[:, 1:]
