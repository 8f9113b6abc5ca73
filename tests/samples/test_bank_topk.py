"""Bank-TopK as it is trained: masks, predictors, stages, and channels kept after training."""

import math

import pytest
import torch
from tests.samples.tiny_models import TINY, draw_tokens
from torch import Tensor

from samples.train.bank_topk import (
    PREDICTOR,
    BankSettings,
    BankTopKLlama,
    Stage,
    StageSettings,
    add_predictors,
    mask_ranked,
    mask_straight_through,
    rank_banks,
    sparsify_post_hoc,
)
from samples.train.llama import DenseLlama

TINY_BANKS = BankSettings(bank_size=8, top_k=2, predictor_rank=3)


def count_mask(scores: Tensor, bank_size: int, top_k: int) -> Tensor:
    """Keeps a channel [I] that fewer than `top_k` of its bank beat: larger, or equal and lower."""
    keep = []
    for bank in scores.split(bank_size):
        values = [-math.inf if math.isnan(v) else v for v in bank.tolist()]
        for i, value in enumerate(values):
            lower, higher = values[:i], values[i + 1 :]
            beaten = sum(v >= value for v in lower) + sum(v > value for v in higher)
            keep.append(beaten < top_k)
    return torch.tensor(keep, dtype=torch.float32)


def mask_scores(scores: Tensor, bank_size: int, top_k: int) -> Tensor:
    return mask_ranked(rank_banks(scores, bank_size)[1], top_k)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_bank_keeps_exactly_k_and_ties_go_to_the_lowest_channel(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(-2, 3, (5, 256), generator=generator).to(dtype)
    scores[0, ::2] = -0.0  # equal to 0.0
    scores[1] = 0
    scores[2, 3::5] = torch.nan
    scores[3, 60:68] = torch.inf
    scores[4, :60] = torch.nan  # 4 finite channels: NaN fills up from the lowest
    mask = mask_scores(scores, 64, 16)
    assert torch.equal(mask.view(5, 4, 64).sum(dim=-1), torch.full((5, 4), 16.0))
    assert torch.equal(mask, torch.stack([count_mask(row, 64, 16) for row in scores]))
    assert torch.equal(mask[1].view(4, 64)[:, :16], torch.ones(4, 16))


def test_surrogate_is_the_mask_forward_and_a_sigmoid_backward() -> None:
    logits = torch.tensor([0.0, 3.0, 1.0, 2.0, -1.0, -1.0, -4.0, 5.0], requires_grad=True)
    mask = mask_straight_through(logits, 4, 2, width=0.5)
    assert mask.tolist() == [0, 1, 0, 1, 1, 0, 0, 1]
    weights = torch.arange(1.0, 9.0)
    (mask * weights).sum().backward()  # type: ignore[no-untyped-call]
    thresholds = torch.tensor([1.5] * 4 + [-1.0] * 4)
    soft = ((logits.detach() - thresholds) / 0.5).sigmoid()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, weights * soft * (1 - soft) / 0.5)


def build_tiny_banks(banks: BankSettings, stages: StageSettings | None = None) -> BankTopKLlama:
    """Random weights; predictors are random too, so nothing is near a good start."""
    torch.manual_seed(0)
    return BankTopKLlama(TINY, banks, stages)


def test_feed_forward_masks_what_the_predictor_ranks_low() -> None:
    layer = build_tiny_banks(TINY_BANKS).feed_forwards()[0]
    weights = dict(layer.named_parameters())
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
    u, v = (x @ weights[f"{name}_proj.weight"].T for name in ("gate", "up"))
    p = x @ weights["predictor.0.weight"].T @ weights["predictor.1.weight"].T
    mask = torch.stack([count_mask(row, 8, 2) for row in p])
    expected = (mask * p.sigmoid() * u * v) @ weights["down_proj.weight"].T
    torch.testing.assert_close(layer(x), expected)


def test_sparse_loss_reaches_every_channel_of_the_predictor() -> None:
    model = build_tiny_banks(TINY_BANKS, StageSettings(0.0, 0.0))
    model.compute_loss(*draw_tokens(), 0.0).backward()  # type: ignore[no-untyped-call]
    for layer in model.feed_forwards():
        gradient = layer.get_parameter("predictor.1.weight").grad
        assert gradient is not None
        assert gradient.abs().sum(dim=-1).min() > 0


def test_stages_follow_the_progress() -> None:
    model, pair = build_tiny_banks(TINY_BANKS, StageSettings(0.2, 0.5)), draw_tokens()
    model.compute_loss(*pair, 0.1).backward()  # type: ignore[no-untyped-call]
    moved = {name for name, p in model.named_parameters() if p.grad is not None}
    assert moved == {PREDICTOR.format(layer, i) for layer in range(4) for i in range(2)}
    losses = {}
    for stage in Stage:
        model.set_stage(stage)
        losses[stage] = -model.target_logprobs(*pair).mean()
    assert len({loss.item() for loss in losses.values()}) == 3
    torch.testing.assert_close(model.compute_loss(*pair, 0.2), losses[Stage.GATED])
    torch.testing.assert_close(model.compute_loss(*pair, 0.5), losses[Stage.SPARSE])
    torch.testing.assert_close(-model.target_logprobs(*pair).mean(), losses[Stage.SPARSE])


def test_full_rank_predictors_start_as_the_native_gate() -> None:
    torch.manual_seed(0)
    dense, (tokens, _) = DenseLlama(TINY), draw_tokens()
    model = build_tiny_banks(BankSettings(8, 8, predictor_rank=16))
    model.load_state_dict(add_predictors(dense.state_dict(), rank=16))
    torch.testing.assert_close(model.compute_logits(tokens), dense.compute_logits(tokens))
    low = build_tiny_banks(BankSettings(8, 8, predictor_rank=3))
    low.load_state_dict(add_predictors(dense.state_dict(), rank=3))
    assert (low.compute_logits(tokens) - dense.compute_logits(tokens)).abs().max() > 1e-4
    for layer, x in zip(model.feed_forwards(), model.record_inputs(tokens), strict=True):
        gate = layer.gate_proj(x).sigmoid()
        entropy = torch.special.entr(gate) + torch.special.entr(1 - gate)
        torch.testing.assert_close(layer.imitation_loss(x), entropy.mean())


def test_post_hoc_keeps_the_largest_activations() -> None:
    torch.manual_seed(0)
    dense, (tokens, _) = DenseLlama(TINY), draw_tokens()
    whole = sparsify_post_hoc(dense, BankSettings(8, 8))
    torch.testing.assert_close(whole.compute_logits(tokens), dense.compute_logits(tokens))
    layer = dense.model.layers[0].get_submodule("mlp")
    cut = sparsify_post_hoc(dense, TINY_BANKS).model.layers[0].get_submodule("mlp")
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
    weights = dict(layer.named_parameters())
    u, v = (x @ weights[f"{name}_proj.weight"].T for name in ("gate", "up"))
    hidden = u * u.sigmoid() * v
    mask = torch.stack([count_mask(row, 8, 2) for row in hidden.abs()])
    torch.testing.assert_close(cut(x), (mask * hidden) @ weights["down_proj.weight"].T)
