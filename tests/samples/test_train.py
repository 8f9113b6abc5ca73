"""The recipe of the sample models: text, formulas, and a smoke run of the command."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tokenizers import Tokenizer

from samples.train.__main__ import main
from samples.train.data import SHORT_PARAGRAPH, load_split
from samples.train.evaluate import report_exits, route_argmax, score_text
from samples.train.llama import DenseLlama, LlamaSettings
from samples.train.nvium import NviumLlama, NviumSettings, chain_exit_probs, mean_depth, pull_even
from samples.train.tokenizer import encode_text

TINY = LlamaSettings(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=4)
TINY_NVIUM = NviumSettings((1, 3), router_intermediate_size=8, pull_weight=2, compute_weight=0.3)
CHECKPOINTS = ("topics-dense", "topics-nvium")
COMMITTED = Path(__file__).parents[2] / "samples" / "checkpoints"


def build_named(name: str) -> DenseLlama | NviumLlama:
    settings = LlamaSettings()
    if name == "topics-nvium":
        return NviumLlama(settings, NviumSettings())
    return DenseLlama(settings)


def build_tiny() -> NviumLlama:
    torch.manual_seed(0)
    return NviumLlama(TINY, TINY_NVIUM)


def draw_tokens() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(32, (2, 8), generator=torch.Generator().manual_seed(1))
    return ids[:, :-1], ids[:, 1:]


def list_paragraphs(text: str) -> set[str]:
    joined = (" ".join(p.split()) for p in text.split("\n\n"))
    return {p for p in joined if len(p) >= SHORT_PARAGRAPH}


def test_heldout_paragraphs_are_not_trained_on() -> None:
    split = load_split()
    heldout = list_paragraphs(split.heldout)
    assert len(heldout) > 100
    assert not heldout & set().union(*map(list_paragraphs, split.documents))


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


def test_argmax_routing_goes_on_at_a_tie() -> None:
    conditional = torch.tensor([[0.5, 0.9, 0.1], [0.6, 0.9, 0.4]]).view(2, 1, 3)
    assert route_argmax(conditional).tolist() == [[1, 0, 2]]


def test_score_counts_every_token_once() -> None:
    model, ids = build_tiny(), torch.arange(300) % 32
    score = score_text(model, ids, num_bytes=600)
    windows = [ids[None, :256], ids[None, 256:]]
    nll = 0.0
    for window in windows:
        opened = torch.cat((torch.zeros(1, 1, dtype=torch.long), window[:, :-1]), dim=1)
        nll -= model.target_logprobs(opened, window).sum().item()
    assert score.perplexity == pytest.approx(torch.tensor(nll / 300).exp().item(), rel=1e-4)
    assert sum(report_exits(model, ids).mixture_shares) == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "perplexity"), [("topics-dense", 34.284), ("topics-nvium", 35.078)]
)
def test_committed_checkpoints_score_as_stated(name: str, perplexity: float) -> None:
    folder, text = COMMITTED / name, (COMMITTED / "heldout.txt").read_text(encoding="utf-8")
    model = build_named(name)
    tensors = load_file(folder / "model.safetensors")
    model.load_state_dict({key: value.float() for key, value in tensors.items()})
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = torch.tensor(encode_text(tokenizer, text))
    score = score_text(model, ids, len(text.encode()))
    assert score.perplexity == pytest.approx(perplexity, rel=1e-3)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("checkpoints")
    main(["--steps", "5", "--out", str(out), "--threads", "2"])
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_smoke_run_saves_public_tensors(smoke: Path, name: str) -> None:
    model = build_named(name)
    tensors = load_file(smoke / name / "model.safetensors")
    expected = {key: value.shape for key, value in model.state_dict().items()}
    assert {key: value.shape for key, value in tensors.items()} == expected
    assert all(t.dtype == torch.bfloat16 and t.isfinite().all() for t in tensors.values())
    exits = [key for key in tensors if key.startswith("early_norms.")]
    assert len(exits) == (3 if name == "topics-nvium" else 0)
    assert "model.layers.7.self_attn.q_proj.weight" in tensors


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_smoke_run_saves_a_lossless_tokenizer(smoke: Path, name: str) -> None:
    tokenizer = Tokenizer.from_file(str(smoke / name / "tokenizer.json"))
    config = json.loads((smoke / name / "config.json").read_text())
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    for text in ((smoke / "heldout.txt").read_text(), "\t naïve  日本\r\n\n🙂 x"):
        ids = tokenizer.encode(text).ids
        assert ids[0] == config["bos_token_id"]
        assert config["eos_token_id"] not in ids
        assert tokenizer.decode(ids) == text


@pytest.mark.slow
def test_smoke_run_saves_nvium_settings(smoke: Path) -> None:
    text = (smoke / "topics-nvium" / ".hydra" / "config.yaml").read_text()
    settings = yaml.safe_load(text)
    assert settings["early_layer_idx"] == [2, 4, 6]
    assert settings["loss"]["alphas_main"]["router_compute_loss"] == NviumSettings().compute_weight
    assert "&" not in text  # no YAML anchors: readers may be simple
