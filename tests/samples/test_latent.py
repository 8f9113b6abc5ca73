"""The latent dynamics of the sample models: losses, drafts, and NextLat's own layout."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.samples.tiny_models import TINY, draw_tokens
from torch import Tensor, nn
from torch.nn import functional

from samples.train.__main__ import format_drafts
from samples.train.drafts import (
    MAX_DRAFT,
    DraftReport,
    cut_prompts,
    measure_drafts,
    walk_steps,
)
from samples.train.fabric import fuse_weights, split_weights
from samples.train.hilp import HilpLlama, HilpSettings
from samples.train.latent import LatentLlama
from samples.train.llama import DenseLlama
from samples.train.nextlat import NextLatLlama, NextLatSettings, mask_documents

TINY_HILP = HilpSettings(window=3, multiplier=2)
TINY_NEXTLAT = NextLatSettings(lambda_mse=2, lambda_kl=0.3, mtp_horizon=2, proj_factor=4)


def build_tiny_hilp() -> HilpLlama:
    torch.manual_seed(0)
    return HilpLlama(TINY, TINY_HILP)


def build_tiny_nextlat() -> NextLatLlama:
    torch.manual_seed(0)
    return NextLatLlama(TINY, TINY_NEXTLAT)


def gated_predictor(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    gate, up, down = (weights[f"{name}.{part}.weight"] for part in ("gate", "up", "down"))
    return (functional.silu(x @ gate.T) * (x @ up.T)) @ down.T


def guess_next(model: LatentLlama, state: Tensor, embedded: Tensor) -> Tensor:
    """The written formulas, for one state [C]."""
    weights = dict(model.named_parameters())
    if isinstance(model, HilpLlama):
        w_h, w_e = (weights[f"lower_dynamics.{name}.weight"] for name in ("w_h", "w_e"))
        fused = (w_h @ state) * torch.sigmoid(w_e @ embedded)
        return state + gated_predictor(weights, "lower_dynamics", fused)
    x = torch.cat((embedded, state))
    x = x / (x.square().mean() + 1e-5).sqrt() * weights["dynamics_model.norm_x.weight"]
    for index in (0, 2, 4):
        x = weights[f"dynamics_model.mlp.{index}.weight"] @ x
        x = x * (1 + torch.erf(x / 2**0.5)) / 2 if index < 4 else x
    return state + x


@pytest.mark.parametrize("build", [build_tiny_hilp, build_tiny_nextlat])
def test_drafted_states_follow_the_formulas(build: Callable[[], LatentLlama]) -> None:
    model, (tokens, _) = build(), draw_tokens()
    with torch.no_grad():
        model.get_parameter("model.norm.weight").copy_(torch.linspace(0.5, 2, 16))
        states = model.compute_states(tokens)
        last = model.model.run_layers(tokens)[-1]
        eps = 1e-6 if isinstance(model, HilpLlama) else 1e-5
        norm = (last.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
        torch.testing.assert_close(states, last * norm * model.model.norm.weight)
        expected = states
        for step, guess in enumerate(model.roll_out(states, tokens, 3), start=1):
            rows = [
                [
                    guess_next(model, expected[b, t], model.model.embed_tokens.weight[token])
                    for t, token in enumerate(tokens[b, step:].tolist())
                ]
                for b in range(2)
            ]
            expected = torch.stack([torch.stack(row) for row in rows])
            assert guess.shape == (2, 7 - step, 16)
            torch.testing.assert_close(guess, expected)


def direct_latent_losses(model: LatentLlama, tokens: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Means over steps of the SmoothL1 and of KL(true || guessed), spelled out."""
    states = model.compute_states(tokens)
    truth = model.lm_head(states).softmax(dim=-1)
    far, apart = [], []
    for step, guess in enumerate(model.roll_out(states, tokens, steps), start=1):
        gap = (guess - states[:, step:]).abs()
        far.append(torch.where(gap < 1, gap**2 / 2, gap - 0.5).mean())
        p, q = truth[:, step:], model.lm_head(guess).softmax(dim=-1)
        apart.append((p * (p.log() - q.log())).sum(dim=-1).mean())
    return sum(far) / steps, sum(apart) / steps  # type: ignore[return-value]


def test_hilp_loss_is_the_sum_of_its_five_terms() -> None:
    model, (tokens, targets) = build_tiny_hilp(), draw_tokens()
    weights, states = dict(model.named_parameters()), model.compute_states(tokens)
    lower, divergence = direct_latent_losses(model, tokens, steps=3)
    uppers = model.swa.summarise(states)
    guess = (uppers + gated_predictor(weights, "upper_dynamics", uppers))[:, :4]
    upper = ((guess - uppers[:, 3:]) ** 2 / 2).mean()  # all gaps are below 1
    w_h, w_u, out = (weights[f"combined_head.{name}.weight"] for name in ("w_h", "w_u", "out"))
    combined = ((states @ w_h.T) * (uppers @ w_u.T).sigmoid()) @ out.T
    expected = {
        "next": -model.target_logprobs(tokens, targets).mean(),
        "lower": lower,
        "divergence": divergence,
        "upper": upper,
        "combined": functional.cross_entropy(combined.flatten(0, 1), targets.flatten()),
    }
    terms = model.loss_terms(tokens, targets)
    torch.testing.assert_close(terms, expected)
    total = model.compute_loss(tokens, targets, 0.5)
    factors = {"next": 1, "lower": 10, "divergence": 0.1, "upper": 1, "combined": 0.5}
    torch.testing.assert_close(total, sum(factors[n] * term for n, term in expected.items()))


def test_upper_states_see_a_window() -> None:
    model = build_tiny_hilp()
    states = torch.randn(1, 7, 16, generator=torch.Generator().manual_seed(1))
    before = model.swa.summarise(states)
    states[:, 2] += 1
    changed = (model.swa.summarise(states) - before).abs().amax(dim=(0, 2)) > 1e-7
    assert changed.tolist() == [False, False, True, True, True, False, False]


def find_moved(model: nn.Module, loss: Tensor) -> set[str]:
    """First parts of the names of all parameters with a gradient other than 0."""
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    grads = {name: p.grad for name, p in model.named_parameters()}
    return {n.split(".")[0] for n, grad in grads.items() if grad is not None and grad.any()}


@pytest.mark.parametrize(
    ("term", "moved"),
    [
        ("next", {"model", "lm_head"}),
        ("lower", {"model", "lower_dynamics"}),
        ("divergence", {"model", "lower_dynamics"}),
        ("upper", {"model", "swa", "upper_dynamics"}),
        ("combined", {"model", "swa", "combined_head"}),
    ],
)
def test_hilp_terms_move_what_they_may(term: str, moved: set[str]) -> None:
    model = build_tiny_hilp()
    assert find_moved(model, model.loss_terms(*draw_tokens())[term]) == moved


def test_truth_is_constant_to_the_latent_losses() -> None:
    """At the last position there is only a truth, no guess made from it."""
    model, (tokens, _) = build_tiny_hilp(), draw_tokens()
    states = model.compute_states(tokens).detach().requires_grad_()
    sum(model.latent_losses(states, tokens, 3)).backward()  # type: ignore[union-attr]
    assert states.grad is not None
    assert states.grad[:, :-1].abs().amax(dim=-1).min() > 0
    assert not states.grad[:, -1].any()
    states.grad = None
    model.upper_loss(states).backward()  # type: ignore[no-untyped-call]
    assert states.grad[:, :4].abs().amax(dim=-1).min() > 0
    assert not states.grad[:, 4:].any()


def test_combined_head_leaves_its_summary_alone() -> None:
    """Past states reach the combined prediction through the summary, which gives no gradient."""
    model, (tokens, targets) = build_tiny_hilp(), draw_tokens()
    states = model.compute_states(tokens).detach().requires_grad_()
    model.compute_states = lambda _: states  # type: ignore[method-assign]
    logits = model.combined_head(states, model.swa.summarise(states.detach()))
    nll = -logits.log_softmax(-1).gather(-1, targets[..., None]).mean()
    (direct,) = torch.autograd.grad(nll, states)
    (through,) = torch.autograd.grad(model.loss_terms(tokens, targets)["combined"], states)
    torch.testing.assert_close(through, direct)


def test_nextlat_loss_is_the_sum_of_its_three_terms() -> None:
    model, (tokens, targets) = build_tiny_nextlat(), draw_tokens()
    state_loss, divergence = direct_latent_losses(model, tokens, steps=2)
    entropy = -model.target_logprobs(tokens, targets).mean()
    loss = model.compute_loss(tokens, targets, 0.5)
    torch.testing.assert_close(loss, entropy + 2 * state_loss + 0.3 * divergence)


def test_nextlat_documents_are_read_alone() -> None:
    model, tokens = build_tiny_nextlat(), torch.tensor([[5, 6, 1, 7, 8, 1, 9]])
    assert mask_documents(tokens)[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0, 0],
        [0, 0, 1, 1, 0, 0, 0],
        [0, 0, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 1, 1],
    ]
    parts = [model.compute_logits(part) for part in tokens.split((2, 3, 2), dim=1)]
    torch.testing.assert_close(model.compute_logits(tokens), torch.cat(parts, dim=1))


def test_nextlat_without_documents_is_the_dense_model() -> None:
    torch.manual_seed(0)
    dense = DenseLlama(replace(TINY, rms_norm_eps=1e-5))
    model, tokens = build_tiny_nextlat(), draw_tokens()[0].clamp(min=2)
    model.load_state_dict(model.state_dict() | dense.state_dict())
    torch.testing.assert_close(model.compute_logits(tokens), dense.compute_logits(tokens))


def test_nextlat_weights_are_fused_and_split() -> None:
    weights = build_tiny_nextlat().state_dict()
    fused = fuse_weights(weights, 4)
    shapes = {name: tuple(t.shape) for name, t in fused.items() if ".blocks." not in name}
    assert shapes == {
        "token_embedding.weight": (32, 16),
        "lm_head.weight": (32, 16),
        "transformer.norm.weight": (16,),
        "dynamics_model.norm_x.weight": (32,),
        "dynamics_model.mlp.0.weight": (128, 32),
        "dynamics_model.mlp.2.weight": (128, 128),
        "dynamics_model.mlp.4.weight": (16, 128),
    }
    attention = fused["transformer.blocks.3.attn.c_attn.weight"]
    key = weights["model.layers.3.self_attn.k_proj.weight"]
    assert torch.equal(attention[len(key) : 2 * len(key)], key)
    gate = weights["model.layers.3.mlp.gate_proj.weight"]
    assert torch.equal(fused["transformer.blocks.3.mlp.up.gate_up.weight"][:24], gate)
    split = split_weights(fused, 4)
    assert split.keys() == weights.keys()
    assert all(torch.equal(split[name], weights[name]) for name in weights)


def draft_directly(model: LatentLlama, prompt: Tensor, count: int) -> list[int]:
    """Matches of each step over `count` tokens behind a prompt [1, P], by really drafting."""
    matches = []
    tokens = prompt
    with torch.no_grad():
        while tokens.shape[1] < prompt.shape[1] + count:
            state = model.compute_states(tokens)[0, -1]
            drafts = [int(model.lm_head(state).argmax())]
            for _ in range(MAX_DRAFT):
                state = guess_next(model, state, model.model.embed_tokens.weight[drafts[-1]])
                drafts.append(int(model.lm_head(state).argmax()))
            whole = torch.cat((tokens, torch.tensor([drafts])), dim=1)
            own = model.compute_logits(whole)[0, tokens.shape[1] - 1 :].argmax(dim=-1).tolist()
            right = 0
            while right < MAX_DRAFT and drafts[1 + right] == own[1 + right]:
                right += 1
            matches.append(right)
            tokens = whole[:, : tokens.shape[1] + 1 + right]
    return matches


@pytest.mark.parametrize("build", [build_tiny_hilp, build_tiny_nextlat])
def test_counted_matches_are_those_of_real_drafting(build: Callable[[], LatentLlama]) -> None:
    model = build()
    generator = torch.Generator().manual_seed(2)
    prompts = torch.randint(2, 32, (3, 20), generator=generator)[:, :5]
    direct = [m for row in prompts for m in draft_directly(model, row[None], 12)]
    assert len(set(direct)) > 2
    expected = sum(1 + m for m in direct) / len(direct)
    assert measure_drafts(model, prompts, 12) == pytest.approx(expected)


def test_steps_skip_what_they_commit() -> None:
    assert walk_steps(torch.tensor([[1, 4, 0, 2], [4, 0, 0, 0]])) == (4, 11)


def test_prompts_are_text_behind_the_first_token() -> None:
    assert cut_prompts(torch.arange(10, 20), 4, 5).tolist() == [[0, 10, 11, 12], [0, 15, 16, 17]]


def test_drafts_are_told_beside_the_papers() -> None:
    joint, refined = DraftReport(1.412, 1.477, 0.32), DraftReport(2.215, 3.15, 0.773)
    rows = format_drafts({"hilp, joint": joint, "hilp": refined}).splitlines()[1:]
    assert [row.split() for row in rows] == [
        ["hilp,", "joint", "1.412", "1.477", "32.0%", "3.41", "2.59"],
        ["hilp", "2.215", "3.150", "77.3%"],
        ["none", "1.000", "1.000"],
    ]
