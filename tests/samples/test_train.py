"""A smoke run of the command that trains the sample models."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tests.samples.sample_models import COMMITTED, build_named
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from samples.train.__main__ import main
from samples.train.bank_topk import PREDICTOR
from samples.train.drafts import DraftReport, report_drafts
from samples.train.evaluate import TextScore, score_text
from samples.train.latent import LatentLlama
from samples.train.llama import LanguageModel
from samples.train.loop import LoopSettings
from samples.train.nvium import NviumSettings
from samples.train.recipes import REFINE

CHECKPOINTS = (
    "topics-dense",
    "topics-nvium",
    "topics-hidden-decoding",
    "topics-bank-topk",
    "topics-hilp",
)
TABLE = "model.scale_seq_embed_tokens_list.{}.weight"


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of each recipe; their scores, of which the committed ones have tests, are of a
    tenth of the held-out text."""
    out = tmp_path_factory.mktemp("checkpoints")

    def score_briefly(model: LanguageModel, ids: Tensor, num_bytes: int) -> TextScore:
        return score_text(model, ids[:1060], num_bytes)

    with mock.patch("samples.train.__main__.score_text", score_briefly):
        run_shortly(["--steps", "5", "--out", str(out), "--threads", "1"])
    return out


def run_shortly(arguments: list[str]) -> None:
    """`main` with a window a step, models that write 16 tokens, and drafts counted over the first
    few hundred held-out tokens only."""

    def report_briefly(model: LatentLlama, heldout: Tensor) -> DraftReport:
        return report_drafts(model, heldout[:600])

    with mock.patch.multiple(
        "samples.train.__main__",
        LoopSettings=partial(LoopSettings, tokens_per_step=256),
        REFINE=replace(REFINE, count=16, rows=4),
        report_drafts=report_briefly,
    ):
        main(arguments)


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


@pytest.mark.slow
def test_smoke_run_saves_stream_settings(smoke: Path) -> None:
    config = json.loads((smoke / "topics-hidden-decoding" / "config.json").read_text())
    dense = json.loads((smoke / "topics-dense" / "config.json").read_text())
    own = {
        "architectures": ["LlamaScaleSeqForCausalLM"],
        "model_type": "llama_scale_seq",
        "scale_seq_attn_per_suffix_layerwise": [True, True, True, False] * 2,
        "scale_seq_times": 1,
    }
    assert config == dense | own
    assert list(config) == sorted(config)


@pytest.mark.slow
def test_smoke_run_saves_bank_settings(smoke: Path) -> None:
    config = json.loads((smoke / "topics-bank-topk" / "config.json").read_text())
    dense = json.loads((smoke / "topics-dense" / "config.json").read_text())
    banks = {
        "bank_size": 64,
        "dense_fallback_layers": [],
        "gate_mode": "sigmoid",
        "predictor_activation": None,
        "predictor_rank": 24,
        "top_k": 16,
    }
    own = {"architectures": ["LlamaBankTopKForCausalLM"], "bank_topk": banks}
    assert config == dense | own
    tensors = load_file(smoke / "topics-bank-topk" / "model.safetensors")
    added = tensors.keys() - load_file(smoke / "topics-dense" / "model.safetensors").keys()
    assert added == {PREDICTOR.format(layer, i) for layer in range(8) for i in range(2)}
    assert tensors[PREDICTOR.format(7, 0)].shape == (24, 96)
    assert tensors[PREDICTOR.format(7, 1)].shape == (256, 24)


@pytest.mark.slow
def test_smoke_run_saves_hilp_settings(smoke: Path) -> None:
    config = json.loads((smoke / "topics-hilp" / "config.json").read_text())
    dense = json.loads((smoke / "topics-dense" / "config.json").read_text())
    hilp = {"drafter": "glu_cross", "residual": True, "window": 4}
    assert config == dense | {"architectures": ["LlamaHiLPForCausalLM"], "hilp": hilp}
    tensors = load_file(smoke / "topics-hilp" / "model.safetensors")
    added = tensors.keys() - load_file(smoke / "topics-dense" / "model.safetensors").keys()
    groups = {
        "lower_dynamics": ("w_h", "w_e", "gate", "up", "down"),
        "swa": ("norm", "q_proj", "k_proj", "v_proj", "o_proj"),
        "upper_dynamics": ("gate", "up", "down"),
        "combined_head": ("w_h", "w_u", "out"),
    }
    assert added == {f"{group}.{n}.weight" for group, names in groups.items() for n in names}
    assert tensors["lower_dynamics.gate.weight"].shape == (4 * 96, 96)
    assert tensors["combined_head.out.weight"].shape == (1024, 96)


@pytest.mark.slow
def test_smoke_run_saves_nextlat_in_its_own_layout(smoke: Path) -> None:
    folder = smoke / "topics-nextlat"
    settings = yaml.safe_load((folder / "materialized_config.yaml").read_text())
    assert settings["n_embd"] == 96
    assert settings["mtp_horizon"] == 4
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.token_to_id("<|endoftext|>") == settings["eos_token_id"]
    checkpoint = torch.load(folder / "checkpoint.pt", weights_only=True)
    assert checkpoint["training_steps"] == 2
    tensors = checkpoint["model"]
    assert all(t.dtype == torch.bfloat16 and t.isfinite().all() for t in tensors.values())
    assert tensors["transformer.blocks.7.attn.c_attn.weight"].shape == (3 * 96, 96)
    assert tensors["transformer.blocks.7.mlp.up.gate_up.weight"].shape == (2 * 256, 96)
    assert len(tensors) == 3 + 8 * 6 + 4
    assert not (folder / "config.json").exists()


@pytest.mark.slow
def test_smoke_run_goes_on_from_its_own_dense_model(smoke: Path) -> None:
    dense = load_file(smoke / "topics-dense" / "model.safetensors")
    streams = load_file(smoke / "topics-hidden-decoding" / "model.safetensors")
    assert streams.keys() == dense.keys() | {TABLE.format(0)}
    first, second = streams["model.embed_tokens.weight"], streams[TABLE.format(0)]
    start = dense["model.embed_tokens.weight"]
    for table in (first, second):
        likeness = functional.cosine_similarity(table.float(), start.float(), dim=-1)
        assert likeness.min() > 0.9
    assert not torch.equal(first, second)
    banks = load_file(smoke / "topics-bank-topk" / "model.safetensors")
    gate = "model.layers.0.mlp.gate_proj.weight"
    likeness = functional.cosine_similarity(banks[gate].float(), dense[gate].float(), dim=-1)
    assert 0.9 < likeness.min() < 1
    assert not (smoke / "topics-dense-continued").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hidden-decoding", "bank-topk", "hilp", "nextlat"])
def test_single_recipe_goes_on_from_the_committed_model(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_shortly(["--steps", "2", "--out", str(tmp_path), "--threads", "1", "--only", name])
    printed = capsys.readouterr().out
    assert f"dense: read from {COMMITTED / 'topics-dense'}" in printed
    assert "\ndense                  34.284" in printed
    assert ("\ndense-4x               35.477" in printed) == (name == "bank-topk")
    paper = {"hilp": "       3.41      2.59\n", "nextlat": "       3.26      2.57\n"}
    assert all((row in printed) == (name == own) for own, row in paper.items())
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == [f"topics-{name}"]
