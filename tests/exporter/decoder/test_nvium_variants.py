"""Every shape an N-vium model may have, against a plain torch reference of the paper's formulas."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tests.exporter.decoder.bank_topk_reference import Banks, make_sparse
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from quatrain.exporter.export import export_checkpoint
from quatrain.runtime.decoding.scoring import score_exits
from quatrain.runtime.llm import LLM
from quatrain.runtime.sampling import SamplingParams
from quatrain.runtime.session import open_model

TOLERANCE = 1e-4  # of the largest magnitude, fp32 on both sides
HIDDEN, VOCAB, LAYERS, EPSILON = 32, 61, 6, 1e-5
ADAPTER, ROUTER, INNER = 20, 12, 14

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one exit": {"layers": [3]},
    "exit after every layer": {"layers": [1, 2, 3, 4, 5]},
    "deep routers": {"router_type": "simple_deep_mlp", "num_layers": 3},
    "router temperature": {"temperature": 2.5},
    "no adapters": {"adapter": False, "final_adapter": False},
    "early adapters only": {"final_adapter": False},
    "final adapter only": {"adapter": False},
    "own heads": {"early_head": "own"},
    "early heads tied to the embeddings": {"early_head": "embeddings"},
    "everything tied": {"tied": True},
    "unsorted exits": {"layers": [4, 1]},
    "sparse feed-forward": {"banks": Banks(dense_fallback_layers=[3])},
}


class Variant:
    """Settings of one model, its tensors, and what they compute."""

    def __init__(self, **changes: Any) -> None:
        settings = {
            "layers": [2, 4],
            "router_type": "simple_mlp",
            "num_layers": 1,
            "temperature": 1.0,
            "adapter": True,
            "final_adapter": True,
            "early_head": "lm_head",
            "tied": False,
            "banks": None,
        }
        self.settings = settings | changes
        self.layers = sorted(self.settings["layers"])
        config = LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=HIDDEN,
            intermediate_size=40,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=96,
            rms_norm_eps=EPSILON,
            tie_word_embeddings=self.settings["tied"],
            initializer_range=0.15,
        )
        self.model = LlamaForCausalLM(config).eval()
        if self.settings["banks"] is not None:
            make_sparse(self.model, self.settings["banks"])
        self.extra = self.make_exit_tensors()

    def make_exit_tensors(self) -> dict[str, Tensor]:
        tensors = {}
        for k in range(len(self.layers)):
            tensors[f"early_norms.{k}.weight"] = torch.rand(HIDDEN) + 0.5
            for j in range(self.settings["num_layers"]):
                name = f"router_layers.{k}.layers.{j}"
                width = HIDDEN if j == 0 else ROUTER
                tensors[f"{name}.fc1.weight"] = torch.randn(INNER, width) * 0.3
                tensors[f"{name}.fc1.bias"] = torch.randn(INNER) * 0.3
                tensors[f"{name}.fc2.weight"] = torch.randn(ROUTER, INNER) * 0.3
                tensors[f"{name}.fc2.bias"] = torch.randn(ROUTER) * 0.3
            tensors[f"router_final_norms.{k}.weight"] = torch.rand(ROUTER) + 0.5
            tensors[f"router_heads.{k}.weight"] = torch.randn(2, ROUTER)
            tensors[f"router_heads.{k}.bias"] = torch.randn(2) * 0.3
            if self.settings["adapter"]:
                tensors[f"early_adapters.{k}.0.weight"] = torch.randn(ADAPTER, HIDDEN) * 0.3
                tensors[f"early_adapters.{k}.2.weight"] = torch.randn(HIDDEN, ADAPTER) * 0.3
            if self.settings["early_head"] == "own":
                tensors[f"early_lm_heads.{k}.weight"] = torch.randn(VOCAB, HIDDEN) * 0.3
        if self.settings["final_adapter"]:
            tensors["final_adapter.0.weight"] = torch.randn(ADAPTER, HIDDEN) * 0.3
            tensors["final_adapter.2.weight"] = torch.randn(HIDDEN, ADAPTER) * 0.3
        return tensors

    def write(self, folder: Path) -> None:
        self.model.save_pretrained(folder)
        tensors = load_file(folder / "model.safetensors") | self.extra
        save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors")
        if self.settings["banks"] is not None:
            path = folder / "config.json"
            banks = self.settings["banks"].config()
            path.write_text(json.dumps(json.loads(path.read_text()) | banks))
        head, tied = self.settings["early_head"], self.settings["tied"]
        config = {
            "early_layer_idx": self.settings["layers"],
            "router": {
                "router_type": self.settings["router_type"],
                "router_temp": self.settings["temperature"],
                "hidden_size": ROUTER,
                "intermediate_size": INNER,
                "num_layers": self.settings["num_layers"],
            },
            "early_adapter": {"enabled": self.settings["adapter"], "dim": ADAPTER},
            "final_adapter": {"enabled": self.settings["final_adapter"], "dim": ADAPTER},
            "tying": {
                "tie_final_to_embeddings": tied,
                "tie_early_to_final": head == "lm_head",
                "tie_early_to_embeddings": head == "embeddings",
            },
        }
        (folder / ".hydra").mkdir()
        (folder / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config))

    @torch.no_grad()
    def score(self, ids: np.ndarray) -> tuple[Tensor, Tensor]:
        """Logits [N, B, L, V] and log p_k [N, B, L] of every exit (families of formulas: N-vium,
        arXiv 2605.13190)."""
        states = self.model.model(torch.from_numpy(ids), output_hidden_states=True)
        logits, log_probs = [], []
        reached = torch.zeros(ids.shape)
        for k, depth in enumerate(self.layers):
            normed = normalize(states.hidden_states[depth], self.extra[f"early_norms.{k}.weight"])
            choice = self.route(k, normed)
            log_probs.append(reached + choice[..., 1])
            reached = reached + choice[..., 0]
            adapted = self.adapt(normed, f"early_adapters.{k}", self.settings["adapter"])
            logits.append(adapted @ self.early_head(k).T)
        final = self.adapt(
            states.last_hidden_state, "final_adapter", self.settings["final_adapter"]
        )
        logits.append(final @ self.model.lm_head.weight.T)
        return torch.stack(logits), torch.stack([*log_probs, reached])

    def route(self, k: int, state: Tensor) -> Tensor:
        for j in range(self.settings["num_layers"]):
            fc1 = self.pair(f"router_layers.{k}.layers.{j}.fc1")
            fc2 = self.pair(f"router_layers.{k}.layers.{j}.fc2")
            state = functional.linear(functional.gelu(functional.linear(state, *fc1)), *fc2)
        normed = normalize(state, self.extra[f"router_final_norms.{k}.weight"])
        logits = functional.linear(normed, *self.pair(f"router_heads.{k}"))
        return torch.log_softmax(logits / self.settings["temperature"], dim=-1)

    def adapt(self, state: Tensor, name: str, enabled: bool) -> Tensor:
        if not enabled:
            return state
        inner = functional.silu(state @ self.extra[f"{name}.0.weight"].T)
        return state + inner @ self.extra[f"{name}.2.weight"].T

    def early_head(self, k: int) -> Tensor:
        if self.settings["early_head"] == "own":
            return self.extra[f"early_lm_heads.{k}.weight"]
        if self.settings["early_head"] == "embeddings":
            return self.model.model.embed_tokens.weight
        return self.model.lm_head.weight

    def pair(self, name: str) -> tuple[Tensor, Tensor]:
        return self.extra[f"{name}.weight"], self.extra[f"{name}.bias"]

    def generate(self, prompt: list[int], count: int) -> tuple[list[int], list[int]]:
        """Greedy tokens and argmax exits, everything recomputed for every token."""
        ids, exits = list(prompt), []
        for _ in range(count):
            logits, _ = self.score(np.array([ids]))
            exits.append(self.choose_exit(np.array([ids])))
            ids.append(int(logits[exits[-1], 0, -1].argmax()))
        return ids[len(prompt) :], exits

    @torch.no_grad()
    def choose_exit(self, ids: np.ndarray) -> int:
        states = self.model.model(torch.from_numpy(ids), output_hidden_states=True)
        for k, depth in enumerate(self.layers):
            weight = self.extra[f"early_norms.{k}.weight"]
            choice = self.route(k, normalize(states.hidden_states[depth], weight))[0, -1]
            if choice[1] > choice[0]:
                return k
        return len(self.layers)


def normalize(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPSILON)


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    torch.manual_seed(len(request.param))
    variant = Variant(**VARIANTS[request.param])
    folder = tmp_path_factory.mktemp("variant")
    variant.write(folder / "checkpoint")
    export_checkpoint(folder / "checkpoint", folder / "bundle", self_test=False)
    return variant, folder / "bundle"


def test_exits_and_their_probabilities(variant):
    reference, bundle = variant
    ids = np.random.default_rng(0).integers(0, VOCAB, (2, 20))
    logits, log_probs = reference.score(ids)
    with open_model(bundle, backend="onnxruntime") as model:
        scores = score_exits(model, ids)
    for found, expected in ((scores.exit_logits, logits), (scores.exit_logprobs, log_probs)):
        wanted = expected.numpy()
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).max() <= TOLERANCE * np.abs(wanted).max()


def test_mixture(variant):
    reference, bundle = variant
    ids = np.random.default_rng(1).integers(0, VOCAB, (2, 20))
    logits, log_probs = reference.score(ids)
    mixture = torch.logsumexp(log_probs[..., None] + torch.log_softmax(logits, -1), 0).numpy()
    with LLM(bundle, backend="onnxruntime") as llm:
        found = llm.logits(ids)
    assert np.abs(found - mixture).max() <= TOLERANCE * np.abs(mixture).max()


def test_greedy_tokens_and_exits(variant):
    reference, bundle = variant
    prompts = [[3, 1, 4, 1, 5], [9]]
    expected = [reference.generate(prompt, 24) for prompt in prompts]
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    with LLM(bundle, backend="onnxruntime", max_deferred=3) as llm:
        found = [(list(r.token_ids), list(r.exits)) for r in llm.generate(prompts, params)]
    assert found == expected
