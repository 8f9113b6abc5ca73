"""Whole checkpoints: the golden one, those that transformers saves, and folders that are none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from tests.exporter.checkpoint.folders import GOLDEN_NVIUM, LLAMA, write_dense, write_json
from transformers import AutoConfig, AutoModelForCausalLM

from quatrain.exporter.checkpoint import Checkpoint, expected_tensors, open_checkpoint
from quatrain.exporter.errors import CheckpointError
from quatrain.exporter.spec import Exits, Llama3RopeScaling, Router

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def save_with_transformers(
    folder: Path, changes: dict[str, Any], dtype: torch.dtype = torch.float32, **save: Any
) -> dict[str, torch.Tensor]:
    """Save a random model and return what it holds."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(**{**LLAMA, **changes})
    model = AutoModelForCausalLM.from_config(config).to(dtype)
    model.save_pretrained(folder, **save)
    return dict(model.state_dict())


def check_values(checkpoint: Checkpoint, state: dict[str, torch.Tensor]) -> None:
    """Every tensor has the name, shape and numbers of the model that was saved."""
    assert {name: t.shape for name, t in checkpoint.tensors.items()} == expected_tensors(
        checkpoint.spec
    )
    for name, tensor in checkpoint.tensors.items():
        stored = state[name].to(torch.float32).numpy()
        np.testing.assert_array_equal(tensor.read().astype(np.float32), stored)


def test_golden_nvium() -> None:
    checkpoint = open_checkpoint(GOLDEN_NVIUM)
    assert checkpoint.spec.exits == Exits((1, 2, 4), Router(1, 64, 22, 1.0), 64, 64, "lm_head")
    backbone = checkpoint.spec.backbone
    assert (backbone.model_type, backbone.hidden_size, backbone.head_dim) == ("llama", 64, 16)
    assert (backbone.num_hidden_layers, backbone.max_position_embeddings) == (5, 256)
    assert not backbone.tie_word_embeddings and backbone.rope_theta == 10000.0
    assert checkpoint.stored_dtype == "bfloat16" and checkpoint.leftovers == []
    assert checkpoint.files == [GOLDEN_NVIUM / "model.safetensors"]
    assert (checkpoint.eos_token_ids, checkpoint.bos_token_id) == ([2], 1)
    with safe_open(GOLDEN_NVIUM / "model.safetensors", "pt") as file:
        check_values(checkpoint, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118


@pytest.mark.parametrize(
    ("changes", "dtype"),
    [
        ({}, torch.float32),
        ({"attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3}, torch.bfloat16),
        ({"tie_word_embeddings": True, "head_dim": 8}, torch.float16),
        ({"model_type": "qwen2"}, torch.float32),
        ({"model_type": "qwen2", "tie_word_embeddings": True}, torch.bfloat16),
        ({"model_type": "qwen3", "head_dim": 8}, torch.bfloat16),
        ({"model_type": "qwen3", "head_dim": 8, "attention_bias": True}, torch.float32),
    ],
)
def test_models_saved_by_transformers(
    tmp_path: Path, changes: dict[str, Any], dtype: torch.dtype
) -> None:
    state = save_with_transformers(tmp_path, changes, dtype)
    checkpoint = open_checkpoint(tmp_path)
    check_values(checkpoint, state)
    assert f"torch.{checkpoint.stored_dtype}" == str(dtype)
    backbone = checkpoint.spec.backbone
    assert backbone.model_type == changes.get("model_type", "llama")
    assert (backbone.num_attention_heads, backbone.num_key_value_heads) == (4, 2)
    assert backbone.tie_word_embeddings == changes.get("tie_word_embeddings", False)
    assert backbone.head_dim == changes.get("head_dim", 4) and backbone.rms_norm_eps == 1e-5
    assert checkpoint.settings_file is None and checkpoint.spec.family == "dense"
    if "rope_parameters" in changes:
        assert backbone.rope_theta == 500000.0
        assert backbone.rope_scaling == Llama3RopeScaling(8.0, 1.0, 4.0, 32)


def test_sharded_save(tmp_path: Path) -> None:
    state = save_with_transformers(tmp_path, {}, max_shard_size="6KB")
    checkpoint = open_checkpoint(tmp_path)
    assert len(checkpoint.files) > 2
    assert {tensor.file for tensor in checkpoint.tensors.values()} == set(checkpoint.files)
    check_values(checkpoint, state)


def test_truncated_weights(tmp_path: Path) -> None:
    write_dense(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="fetch the file again; it was cut short") as caught:
        open_checkpoint(tmp_path)
    assert "ends at byte" in caught.value.found and str(path) in caught.value.asked


def test_path_may_be_text(tmp_path: Path) -> None:
    write_dense(tmp_path)
    assert open_checkpoint(str(tmp_path)).folder == tmp_path  # type: ignore[arg-type]


def test_folders_that_are_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, found in [
        (tmp_path / "absent", "there is no such folder"),
        (tmp_path / "file", "it is a file, not a folder"),
        (tmp_path, "no config.json in it"),
    ]:
        with pytest.raises(CheckpointError) as caught:
            open_checkpoint(path)
        assert caught.value.found == found and str(path) in caught.value.asked
        assert "config.json" in caught.value.fix


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"", "Expecting value"),
        (b'{"model_type": ', "Expecting value"),
        (b"[]", "it holds a JSON list, not an object"),
        (b'{"a": 1, "a": 2}', "the key 'a' occurs twice"),
        (b"\xff\xfe", "can't decode byte"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b"9" * 10_000, "Exceeds the limit"),
    ],
)
def test_damaged_config(tmp_path: Path, text: bytes, found: str) -> None:
    write_dense(tmp_path)
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path)
    assert found in caught.value.found and "config.json" in caught.value.asked


def test_config_without_weights(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", LLAMA)
    with pytest.raises(CheckpointError, match="give the folder that holds the weights"):
        open_checkpoint(tmp_path)


def test_a_bundle_is_told_from_a_folder_without_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path)
    assert caught.value.found == "it is a bundle, which `quatrain export` wrote"
    assert caught.value.fix == "give the checkpoint that it was exported from"
    write_dense(tmp_path)  # some checkpoints have a file of that name
    assert open_checkpoint(tmp_path).folder == tmp_path


def test_a_folder_that_may_not_be_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    write_dense(tmp_path)
    monkeypatch.setattr("os.stat", deny)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path)
    monkeypatch.undo()
    assert caught.value.found == "Permission denied" and "read it" in caught.value.fix
