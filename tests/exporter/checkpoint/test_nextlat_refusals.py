"""NextLat's own layout: settings and tensors that are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.checkpoint.folders import write_dense
from tests.exporter.checkpoint.nextlat_folders import GOLDEN_NEXTLAT, State, drop, put, write

from quatrain.exporter.checkpoint import IncompleteCheckpointError, open_checkpoint
from quatrain.exporter.errors import CheckpointError, ExportError
from quatrain.exporter.expansion import expand_checkpoint
from quatrain.runtime.errors import QuatrainError


def refusal(folder: Path) -> QuatrainError:
    with pytest.raises(QuatrainError) as caught:
        open_checkpoint(folder)
    return caught.value


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
    assert error.fix.endswith("are there, or correct n_layer in materialized_config.yaml")


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
