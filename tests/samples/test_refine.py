"""The second training of what drafts: the text that a model writes, and what learns from it."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from samples.train.batches import open_windows
from samples.train.continuation import continue_text
from samples.train.hilp import HilpLlama, HilpSettings
from samples.train.latent import LatentLlama
from samples.train.llama import LlamaSettings
from samples.train.nextlat import NextLatLlama, NextLatSettings
from samples.train.refine import (
    RefineSettings,
    collect_states,
    rate_at,
    refine_dynamics,
    sample_stretches,
    write_texts,
)

TINY = LlamaSettings(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2)
FAST = RefineSettings(
    steps=30, texts=4, prompt_length=6, count=12, rows=3, stretch=5, horizon=2, warmup_steps=3
)


def build_hilp() -> HilpLlama:
    torch.manual_seed(0)
    return HilpLlama(TINY, HilpSettings(window=3, multiplier=2))


def build_nextlat() -> NextLatLlama:
    torch.manual_seed(0)
    return NextLatLlama(TINY, NextLatSettings(proj_factor=4))


BUILDS = pytest.mark.parametrize("build", [build_hilp, build_nextlat])


def draw_stream(length: int = 60) -> Tensor:
    return torch.randint(32, (length,), generator=torch.Generator().manual_seed(1))


def refine(model: LatentLlama, settings: RefineSettings = FAST, seed: int = 3) -> list[float]:
    losses = []
    refine_dynamics(model, draw_stream(), settings, seed, lambda _, loss, __: losses.append(loss))
    return losses


@BUILDS
def test_the_likeliest_text_is_that_of_whole_passes(build: Callable[[], LatentLlama]) -> None:
    """One document or several: token 1 ends them."""
    model, tokens = build(), torch.tensor([[5, 6, 1, 7, 8], [9, 9, 4, 3, 1]])
    written = continue_text(model, tokens, 7)
    with torch.no_grad():
        for _ in range(7):
            best = model.compute_logits(tokens)[:, -1].argmax(dim=-1, keepdim=True)
            tokens = torch.cat((tokens, best), dim=1)
    assert torch.equal(written, tokens)


def test_drawn_text_follows_the_probabilities_and_the_generator() -> None:
    model, prompts = build_hilp(), torch.tensor([[3, 4]]).expand(4000, 2)
    with torch.no_grad():
        model.lm_head.weight.mul_(8)
        probs = (model.compute_logits(prompts[:1])[0, -1] / 0.5).softmax(dim=-1)
    first, again = (
        continue_text(model, prompts, 1, 0.5, torch.Generator().manual_seed(7)) for _ in range(2)
    )
    assert torch.equal(first, again)
    shares = torch.bincount(first[:, 2], minlength=32) / 4000
    assert probs.max() > 0.08  # else there is not much to follow
    assert (shares - probs).abs().max() < 0.03


def test_texts_go_on_from_the_training_text() -> None:
    model, stream = build_hilp(), draw_stream()
    texts = write_texts(model, stream, FAST, torch.Generator().manual_seed(2))
    assert texts.shape == (2 * 4, 6 + 12)
    windows = open_windows(stream.unfold(0, 6, 1))[0].tolist()
    assert all(prompt in windows for prompt in texts[:, :6].tolist())
    assert torch.equal(texts[:4], continue_text(model, texts[:4, :6], 12))
    assert not torch.equal(texts[4:], continue_text(model, texts[4:, :6], 12))


def test_stretches_are_tokens_and_their_states() -> None:
    model, generator = build_nextlat(), torch.Generator().manual_seed(2)
    texts = draw_stream(80).view(4, 20)
    states = collect_states(model, texts, rows=3)
    with torch.no_grad():
        torch.testing.assert_close(states, model.compute_states(texts))
    batches = sample_stretches(texts, states, FAST, generator)
    starts = set()
    for _ in range(40):
        tokens, truth = next(batches)
        assert tokens.shape == (3, 7) and truth.shape == (3, 7, 16)
        for row, state in zip(tokens, truth, strict=True):
            [(n, t)] = (texts.unfold(1, 7, 1) == row).all(dim=-1).nonzero().tolist()
            assert torch.equal(state, states[n, t : t + 7])
            starts.add(t)
    assert starts <= set(range(14)) and len(starts) > 7


@BUILDS
def test_only_what_drafts_is_changed_and_guesses_get_better(
    build: Callable[[], LatentLlama],
) -> None:
    model, settings = build(), replace(FAST, steps=100, learning_rate=0.02)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    texts = write_texts(model, draw_stream(), settings, torch.Generator().manual_seed(5))
    states = collect_states(model, texts, rows=8)
    far, apart = model.latent_losses(states, texts, 2)
    refine(model, settings)
    changed = {n for n, tensor in model.state_dict().items() if not torch.equal(tensor, before[n])}
    own = {id(parameter) for parameter in model.dynamics.parameters()}
    assert changed == {name for name, p in model.named_parameters() if id(p) in own}
    now_far, now_apart = model.latent_losses(states, texts, 2)
    assert now_far < 0.9 * far and now_apart < 0.9 * apart


def test_the_seed_decides() -> None:
    models = [build_hilp() for _ in range(3)]
    for model, seed in zip(models, (3, 3, 4), strict=True):
        refine(model, seed=seed)
    first, same, other = (model.lower_dynamics.w_h.weight for model in models)
    assert torch.equal(first, same) and not torch.equal(first, other)


def test_rates_and_shares() -> None:
    rates = [rate_at(step, FAST) for step in range(30)]
    assert rates[0] == pytest.approx(FAST.learning_rate / 3)
    assert max(rates) == rates[2] and rates[29] < FAST.learning_rate / 100
    share = RefineSettings(steps=1200, texts=512).take_share(0.25)
    assert (share.steps, share.texts) == (300, 128)
    assert RefineSettings().take_share(0).steps == 1
