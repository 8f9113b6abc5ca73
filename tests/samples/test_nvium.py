"""N-vium as it is trained: shares of exits, their mixture, and the terms of the loss."""

import pytest
import torch
from tests.samples.tiny_models import TINY_NVIUM, build_tiny, draw_tokens

from samples.train.nvium import chain_exit_probs, mean_depth, pull_even


def test_exit_probs_sum_to_one() -> None:
    model = build_tiny()
    exits = model.run_exits(*draw_tokens())
    assert exits.exit_probs.shape == (3, 2, 7)
    torch.testing.assert_close(exits.exit_probs.sum(dim=0), torch.ones(2, 7))
    first, second = exits.conditional_probs
    torch.testing.assert_close(exits.exit_probs[1], (1 - first) * second)


def test_mixture_matches_direct_computation() -> None:
    model, (tokens, targets) = build_tiny(), draw_tokens()
    exits = model.run_exits(tokens, targets)
    heads = []
    for state, adapter in zip(
        model.exit_states(tokens), [*model.early_adapters, model.final_adapter], strict=True
    ):
        heads.append((model.lm_head(state + adapter(state))).softmax(dim=-1))
    mixture = (exits.exit_probs[..., None] * torch.stack(heads)).sum(dim=0)
    torch.testing.assert_close(mixture.sum(dim=-1), torch.ones(2, 7))
    direct = mixture.gather(-1, targets[..., None]).squeeze(-1).log()
    torch.testing.assert_close(model.target_logprobs(tokens, targets), direct)


def test_loss_terms_follow_the_warmup() -> None:
    model, pair = build_tiny(), draw_tokens()
    exits, nll = model.run_exits(*pair), -model.target_logprobs(*pair).mean()
    even = ((exits.conditional_probs - torch.tensor([1 / 3, 1 / 2])[:, None, None]) ** 2).mean()
    depth = (exits.exit_probs.mean(dim=(1, 2)) * torch.tensor([0.25, 0.75, 1.0])).sum()
    warmup = TINY_NVIUM.warmup_ratio
    torch.testing.assert_close(model.compute_loss(*pair, warmup / 2), nll + 2 * even)
    torch.testing.assert_close(model.compute_loss(*pair, warmup), nll + 0.3 * depth)


def test_even_routers_give_even_shares() -> None:
    conditional = torch.tensor([1 / 4, 1 / 3, 1 / 2]).view(3, 1, 1)
    probs = chain_exit_probs(conditional)
    torch.testing.assert_close(probs.flatten(), torch.full((4,), 0.25))
    assert pull_even(conditional) == 0
    assert mean_depth(probs, torch.tensor([0.25, 0.5, 0.75, 1.0])).item() == pytest.approx(0.625)
