"""NextLat's own layout: a Fabric .pt and a YAML, under our names."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.exporter.checkpoint import nextlat_reference as reference
from tests.exporter.checkpoint.folders import GOLDEN, write_dense
from tests.exporter.checkpoint.nextlat_folders import (
    GOLDEN_NEXTLAT,
    State,
    drop,
    put,
    rename,
    write,
)
from transformers import LlamaConfig, LlamaForCausalLM

from quatrain.exporter.checkpoint import expected_tensors, open_checkpoint
from quatrain.exporter.spec import Backbone, DecoderSpec, Drafter

BACKBONE = Backbone("llama", 64, 32, 80, 2, 2, 2, 16, 96, rms_norm_eps=1e-5)
SPEC = DecoderSpec(BACKBONE, drafter=Drafter("nextlat", 56, True, 1e-5))


def test_golden_checkpoint() -> None:
    checkpoint = open_checkpoint(GOLDEN_NEXTLAT)
    assert checkpoint.spec == SPEC and checkpoint.spec.family == "nextlat"
    assert checkpoint.files == [GOLDEN_NEXTLAT / "model.pt"] and checkpoint.leftovers == []
    assert checkpoint.settings_file == GOLDEN_NEXTLAT / "materialized_config.yaml"
    assert (checkpoint.document_token_id, checkpoint.eos_token_ids) == (0, [0])
    assert checkpoint.bos_token_id is None and not checkpoint.add_bos_token
    assert checkpoint.tokenizer_files == [] and checkpoint.drafter_absence is None
    assert checkpoint.stored_dtype == "float32"
    assert {n: t.shape for n, t in checkpoint.tensors.items()} == expected_tensors(SPEC)


def test_every_number_of_the_file_is_in_its_place() -> None:
    stored = torch.load(GOLDEN_NEXTLAT / "model.pt", weights_only=True)["model"]
    tensors = open_checkpoint(GOLDEN_NEXTLAT).tensors
    parts = {
        "attn.c_attn": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        "mlp.up.gate_up": ["mlp.gate_proj", "mlp.up_proj"],
    }
    for layer in range(2):
        for fused, names in parts.items():
            whole = stored[f"transformer.blocks.{layer}.{fused}.weight"].numpy()
            views = [tensors[f"model.layers.{layer}.{name}.weight"] for name in names]
            np.testing.assert_array_equal(np.concatenate([v.read() for v in views]), whole)
            assert {v.stored_name for v in views} == {f"transformer.blocks.{layer}.{fused}.weight"}
    for ours, theirs in [
        ("model.embed_tokens", "token_embedding"),
        ("model.norm", "transformer.norm"),
        ("lm_head", "lm_head"),
        ("model.layers.1.input_layernorm", "transformer.blocks.1.ln_1"),
        ("model.layers.1.post_attention_layernorm", "transformer.blocks.1.ln_2"),
        ("model.layers.0.self_attn.o_proj", "transformer.blocks.0.attn.c_proj"),
        ("model.layers.0.mlp.down_proj", "transformer.blocks.0.mlp.down"),
        ("dynamics_model.norm_x", "dynamics_model.norm_x"),
        ("dynamics_model.mlp.4", "dynamics_model.mlp.4"),
    ]:
        read = tensors[f"{ours}.weight"].read()
        np.testing.assert_array_equal(read, stored[f"{theirs}.weight"].numpy())


def test_it_is_a_llama_within_documents() -> None:
    """transformers' Llama with our names and absolute positions, and a mask of documents."""
    checkpoint, golden = open_checkpoint(GOLDEN_NEXTLAT), np.load(GOLDEN / "nextlat/golden.npz")
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=96,
        rms_norm_eps=1e-5,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).eval()
    state = {n: torch.from_numpy(t.read().copy()) for n, t in checkpoint.tensors.items()}
    model.load_state_dict({n: v for n, v in state.items() if "dynamics" not in n})
    tokens = torch.from_numpy(golden["input_ids"])
    documents = (tokens == checkpoint.document_token_id).cumsum(1)
    allowed = (documents[:, :, None] == documents[:, None, :]).tril()[:, None]
    mask = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    with torch.no_grad():
        logits = model(tokens, attention_mask=mask).logits
        causal = model(tokens).logits
    np.testing.assert_allclose(logits.numpy(), golden["logits"], atol=1e-4)
    assert np.abs(causal.numpy() - golden["logits"]).max() > 0.1  # the mask matters


def test_golden_numbers_are_the_references() -> None:
    golden = np.load(GOLDEN / "nextlat" / "golden.npz")
    stored = torch.load(GOLDEN_NEXTLAT / "model.pt", weights_only=True)["model"]
    weights = {name: value.double() for name, value in stored.items()}
    for row, tokens in enumerate(torch.from_numpy(golden["input_ids"])):
        hidden = reference.compute_hidden(weights, tokens)
        predicted = reference.predict(weights, hidden[:-1], tokens[1:])
        logits = reference.compute_logits(weights, hidden)
        for name, value in [("hidden", hidden), ("logits", logits), ("pred_hidden", predicted)]:
            np.testing.assert_allclose(value.numpy(), golden[name][row], atol=1e-4)
    prompt, count = golden["prompt_ids"][0].tolist(), len(golden["generated_ids"])
    run, _ = reference.generate(weights, prompt, count + 4)
    assert run[:count] == golden["generated_ids"].tolist()
    accepted = reference.count_accepted(weights, prompt, run, count)
    assert accepted == golden["accepted_per_round"].tolist()
    assert golden["generated_margin"].min() > 0.01


@pytest.mark.parametrize("prefix", ["_forward_module.", "_orig_mod.", "_forward_module._orig_mod."])
def test_wrappers_are_stripped(tmp_path: Path, prefix: str) -> None:
    opened = open_checkpoint(write(tmp_path, rename("", prefix)))
    assert opened.spec == SPEC and opened.leftovers == []
    assert opened.tensors["lm_head.weight"].stored_name == f"{prefix}lm_head.weight"


def test_blocks_at_the_top(tmp_path: Path) -> None:
    assert open_checkpoint(write(tmp_path, rename("transformer.", ""))).spec == SPEC


def test_bfloat16(tmp_path: Path) -> None:
    def halve(state: State) -> None:
        state.update({name: value.bfloat16() for name, value in state.items()})

    opened = open_checkpoint(write(tmp_path, halve))
    assert opened.stored_dtype == "bfloat16"
    up = opened.tensors["model.layers.1.mlp.up_proj.weight"]
    whole = reference.make_weights()["transformer.blocks.1.mlp.up.gate_up.weight"]
    np.testing.assert_array_equal(up.read().astype(np.float32), whole[80:].bfloat16().float())


def test_without_dynamics_it_is_a_plain_decoder(tmp_path: Path) -> None:
    opened = open_checkpoint(write(tmp_path, drop("dynamics_model.")))
    assert opened.spec == DecoderSpec(BACKBONE) and opened.document_token_id == 0
    assert opened.drafter_absence == "no dynamics_model.* in the checkpoint"


def test_context_length_where_there_is_no_block_size(tmp_path: Path) -> None:
    opened = open_checkpoint(write(tmp_path, block_size=None, context_length=48))
    assert opened.spec.backbone.max_position_embeddings == 48


def test_buffers_are_left_over(tmp_path: Path) -> None:
    name = "transformer.blocks.0.attn.bias"
    assert open_checkpoint(write(tmp_path, put(name, 1, 8))).leftovers == [name]


def test_a_tokenizer_beside_it(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (write(tmp_path) / name).write_text("{}")
    files = [tmp_path / "tokenizer.json", tmp_path / "tokenizer_config.json"]
    assert open_checkpoint(tmp_path).tokenizer_files == files


def test_a_config_json_goes_first(tmp_path: Path) -> None:
    write_dense(write(tmp_path))
    opened = open_checkpoint(tmp_path)
    assert opened.spec.family == "dense" and opened.document_token_id is None
