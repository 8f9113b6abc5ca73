"""NextLat's own layout: a Fabric .pt and a YAML, under our names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.exporter.checkpoint import nextlat_reference as reference
from tests.exporter.checkpoint.folders import GOLDEN, write_dense, write_settings
from transformers import LlamaConfig, LlamaForCausalLM

from quatrain.exporter.checkpoint import (
    IncompleteCheckpointError,
    expected_tensors,
    open_checkpoint,
)
from quatrain.exporter.errors import CheckpointError, ExportError
from quatrain.exporter.expansion import expand_checkpoint
from quatrain.exporter.spec import Backbone, DecoderSpec, Drafter
from quatrain.runtime.errors import QuatrainError

GOLDEN_NEXTLAT = GOLDEN / "nextlat" / "checkpoint"
BACKBONE = Backbone("llama", 64, 32, 80, 2, 2, 2, 16, 96, rms_norm_eps=1e-5)
SPEC = DecoderSpec(BACKBONE, drafter=Drafter("nextlat", 56, True, 1e-5))

State = dict[str, Any]


def write(folder: Path, change: Callable[[State], object] | None = None, **settings: Any) -> Path:
    """A checkpoint whose state dict and settings may be changed."""
    folder.mkdir(exist_ok=True)
    state: State = dict(reference.make_weights())
    if change is not None:
        change(state)
    torch.save({"model": state, "training_steps": 3}, folder / "step-3.pt")
    write_settings(folder / "materialized_config.yaml", {**reference.SETTINGS, **settings})
    return folder


def refusal(folder: Path) -> QuatrainError:
    with pytest.raises(QuatrainError) as caught:
        open_checkpoint(folder)
    return caught.value


def rename(old: str, new: str) -> Callable[[State], object]:
    """Give every tensor whose name begins with `old` one that begins with `new`."""

    def change(state: State) -> None:
        for name in [name for name in state if name.startswith(old)]:
            state[new + name.removeprefix(old)] = state.pop(name)

    return change


def put(name: str, *shape: int) -> Callable[[State], object]:
    return lambda state: state.update({name: torch.zeros(shape)})


def drop(*names: str) -> Callable[[State], object]:
    return lambda state: [state.pop(name) for name in list(state) if name.startswith(names)]


# --- what is read ---


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


# --- what is refused ---


def test_biases(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, bias=True))
    assert error.asked.startswith("a NextLat decoder with bias = True in")
    assert "subtract the mean" in error.found


@pytest.mark.parametrize("key", ["n_layer", "n_head", "n_embd", "vocab_size", "eos_token_id"])
def test_settings_without_default(tmp_path: Path, key: str) -> None:
    error = refusal(write(tmp_path, **{key: None}))
    assert error.asked.startswith(f"{key} in {tmp_path / 'materialized_config.yaml'}")


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ({"n_head": 3}, "n_head in"),
        ({"n_head": 0}, "n_head in"),
        ({"n_layer": "2"}, "n_layer in"),
        ({"eos_token_id": 64}, "eos_token_id in"),
        ({"eos_token_id": -1}, "eos_token_id in"),
        ({"eos_token_id": [0]}, "eos_token_id in"),
        ({"bias": "no"}, "bias in"),
        ({"block_size": None, "context_length": None}, "context_length in"),
    ],
)
def test_malformed_settings(tmp_path: Path, settings: dict[str, Any], asked: str) -> None:
    error = refusal(write(tmp_path, **settings))
    assert isinstance(error, CheckpointError) and error.asked.startswith(asked)


def test_more_layers_than_tensors(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, n_layer=1000))
    assert error.fix == "correct n_layer in materialized_config.yaml"


def test_settings_of_another_model(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, n_layer=3, vocab_size=65))
    assert isinstance(error, IncompleteCheckpointError)
    assert "model.layers.2.self_attn.q_proj.weight" in error.missing
    assert "lm_head.weight [64, 32] instead of [65, 32]" in error.misshapen
    assert "materialized_config.yaml belongs to these weights" in error.fix


@pytest.mark.parametrize("count", [0, 2])
def test_weights_in_one_file(tmp_path: Path, count: int) -> None:
    write(tmp_path)
    (tmp_path / "step-3.pt").unlink()
    for i in range(count):
        (tmp_path / f"step-{i}.pt").touch()
    error = refusal(tmp_path)
    assert error.found == ("2: step-0.pt, step-1.pt" if count else "none")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (put("transformer.blocks.0.attn.c_attn.weight", 97, 32), "the shape [97, 32]"),
        (put("transformer.blocks.1.mlp.up.gate_up.weight", 160), "the shape [160]"),
        (drop("transformer.blocks.0.mlp.up"), "no such tensor"),
        (drop("dynamics_model.mlp.0"), "no such tensor"),
        (put("dynamics_model.mlp.0.weight", 56), "a tensor of shape [56]"),
        (put("token_embedding.weight", 64, 31), "[64, 31] instead of [64, 32]"),
        (put("transformer.blocks.0.attn.c_attn.weight", 48, 32), "[16, 32] instead of [32, 32]"),
        (put("dynamics_model.mlp.2.weight", 56, 55), "[56, 55] instead of [56, 56]"),
        (put("dynamics_model.mlp.2.bias", 56), "1 unexpected: dynamics_model.mlp.2.bias"),
        (put("transformer.blocks.0.attn.q_norm.weight", 16), "1 unexpected: transformer.blocks"),
        (put("blocks.0.ln_1.weight", 32), "names that mean the same: blocks.0.ln_1.weight, trans"),
        (put("_orig_mod.lm_head.weight", 64, 32), "names that become the same"),
        (drop("lm_head"), "1 missing: lm_head.weight"),
        (lambda state: state.update(note="x"), "model.note is no tensor, but a str"),
    ],
)
def test_tensors_that_do_not_fit(
    tmp_path: Path, change: Callable[[State], object], found: str
) -> None:
    error = refusal(write(tmp_path, change))
    assert isinstance(error, CheckpointError) and found in error.found


def test_settings_that_are_no_plain_yaml(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "materialized_config.yaml"
    path.write_text("a: !!python/object/apply:os.getcwd []")
    assert str(path) in refusal(tmp_path).asked


def test_a_file_name_that_no_graph_can_hold(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "step-3.pt").rename(tmp_path / "a\\b.pt")
    assert "a\\b.pt" in refusal(tmp_path).found


def test_nextlat_settings_in_config_json(tmp_path: Path) -> None:
    error = refusal(write_dense(tmp_path, nextlat={"proj_factor": 1.0}))
    assert "materialized_config.yaml and a .pt file" in error.found


def test_nothing_is_derived_from_the_layout(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"NextLat.s own layout, without a config\.json"):
        expand_checkpoint(GOLDEN_NEXTLAT, tmp_path / "out", num_streams=2)
