"""N-vium settings: found, read, and held against the tensors."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.checkpoint.folders import (
    BACKBONE,
    EXITS,
    NVIUM,
    changed,
    random_tensors,
    write_checkpoint,
    write_nvium,
    write_settings,
)

from quatrain.exporter.checkpoint import open_checkpoint
from quatrain.exporter.errors import CheckpointError, SpecError
from quatrain.exporter.spec import Exits, Router


def read_exits(folder: Path) -> Exits:
    exits = open_checkpoint(folder).spec.exits
    assert exits is not None
    return exits


def refusal(folder: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    return caught.value


def test_all_settings_are_read(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_nvium(tmp_path))
    assert checkpoint.spec.exits == EXITS and checkpoint.spec.backbone == BACKBONE
    assert checkpoint.spec.family == "nvium"
    assert checkpoint.settings_file == tmp_path / ".hydra" / "config.yaml"


@pytest.mark.parametrize("up", [0, 1, 2])
def test_settings_up_to_two_folders_up(tmp_path: Path, up: int) -> None:
    folder = tmp_path / "run" / "checkpoints" / "checkpoint-7"
    write_nvium(folder, at="../" * up + ".hydra/config.yaml")
    assert read_exits(folder) == EXITS


def test_settings_three_folders_up_are_not_found(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b" / "c"
    write_nvium(folder, at="../../../.hydra/config.yaml")
    error = refusal(folder)
    for place in (
        folder / "ft_exp_config.yaml",
        folder / ".hydra" / "config.yaml",
        tmp_path / "a" / "b" / ".hydra" / "config.yaml",
        tmp_path / "a" / ".hydra" / "config.yaml",
    ):
        assert str(place) in error.found
    assert "N-vium settings" in error.asked and "put the training run's" in error.fix


def test_relative_path_has_parents_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run" / "checkpoint-7"
    write_nvium(folder, at="../.hydra/config.yaml")
    monkeypatch.chdir(folder)
    assert read_exits(Path(".")) == EXITS


def test_fine_tuned_settings_go_before_the_pretraining_ones(tmp_path: Path) -> None:
    write_nvium(tmp_path, settings=changed(NVIUM, router__router_temp=9.0))
    write_settings(tmp_path / "ft_exp_config.yaml", NVIUM)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.spec.exits == EXITS
    assert checkpoint.settings_file == tmp_path / "ft_exp_config.yaml"


def test_exits_are_sorted_and_may_be_one_number(tmp_path: Path) -> None:
    settings = changed(NVIUM, early_layer_idx=[2, 1])
    assert read_exits(write_nvium(tmp_path / "a", settings=settings)).layers == (1, 2)
    single = replace(EXITS, layers=(2,))
    settings = changed(NVIUM, early_layer_idx=2)
    assert read_exits(write_nvium(tmp_path / "b", single, settings)).layers == (2,)


def test_deep_router(tmp_path: Path) -> None:
    exits = replace(EXITS, router=Router(3, 8, 6, 0.5))
    settings = changed(NVIUM, router__router_type="simple_deep_mlp", router__num_layers=3)
    assert read_exits(write_nvium(tmp_path, exits, settings)) == exits


def test_simple_router_has_one_block_whatever_num_layers_says(tmp_path: Path) -> None:
    settings = changed(NVIUM, router__num_layers=4)
    assert read_exits(write_nvium(tmp_path, settings=settings)) == EXITS


def test_no_adapters(tmp_path: Path) -> None:
    exits = replace(EXITS, adapter_size=None, final_adapter_size=None)
    settings = changed(NVIUM, early_adapter__enabled=False)
    del settings["final_adapter"]
    assert read_exits(write_nvium(tmp_path, exits, settings)) == exits


def test_defaults_of_the_reference(tmp_path: Path) -> None:
    settings = changed(NVIUM)
    del settings["early_adapter"]["dim"], settings["router"]["router_temp"]
    del settings["router"]["intermediate_size"], settings["tying"]["tie_early_to_embeddings"]
    exits = replace(EXITS, adapter_size=16, router=Router(1, 8, 16, 1.0))
    assert read_exits(write_nvium(tmp_path, exits, settings)) == exits


@pytest.mark.parametrize(
    ("to_final", "to_embeddings", "head"),
    [(True, True, "lm_head"), (False, True, "embeddings"), (False, False, "own")],
)
def test_early_heads(tmp_path: Path, to_final: bool, to_embeddings: bool, head: Any) -> None:
    exits = replace(EXITS, early_head=head)
    settings = changed(
        NVIUM, tying__tie_early_to_final=to_final, tying__tie_early_to_embeddings=to_embeddings
    )
    checkpoint = open_checkpoint(write_nvium(tmp_path, exits, settings))
    assert checkpoint.spec.exits == exits
    assert ("early_lm_heads.1.weight" in checkpoint.tensors) == (head == "own")


def test_final_head_tied_to_embeddings(tmp_path: Path) -> None:
    backbone = replace(BACKBONE, tie_word_embeddings=True)
    settings = changed(NVIUM, tying__tie_final_to_embeddings=True)
    write_nvium(tmp_path, settings=settings, backbone=backbone, tie_word_embeddings=True)
    assert open_checkpoint(tmp_path).spec.backbone == backbone
    del settings["tying"]["tie_final_to_embeddings"]  # then config.json says it alone
    write_settings(tmp_path / ".hydra" / "config.yaml", settings)
    assert open_checkpoint(tmp_path).spec.backbone == backbone


def test_tying_that_config_json_contradicts(tmp_path: Path) -> None:
    settings = changed(NVIUM, tying__tie_final_to_embeddings=True)
    error = refusal(write_nvium(tmp_path, settings=settings))
    assert f"tying.tie_final_to_embeddings = True in {tmp_path}/.hydra/config.yaml" in error.asked
    assert f"tie_word_embeddings = False in {tmp_path}/config.json" in error.found


@pytest.mark.parametrize(
    ("changes", "asked", "found"),
    [
        ({"early_layer_idx": [1]}, "early_layer_idx = [1]", "early_norms of 2 exits"),
        (
            {"router__router_type": "simple_deep_mlp", "router__num_layers": 2},
            "router_type = simple_deep_mlp",
            "router_layers.0 has 1 blocks in the weights",
        ),
        (
            {"router__hidden_size": 9},
            "router.hidden_size = 9",
            "router_layers.0.layers.0.fc2.weight of shape [8, 6]",
        ),
        ({"router__intermediate_size": 7}, "router.intermediate_size = 7", "of shape [8, 6]"),
        (
            {"early_adapter__dim": 11},
            "early_adapter.dim = 11",
            "early_adapters.0.0.weight of shape",
        ),
        ({"final_adapter__dim": 11}, "final_adapter.dim = 11", "final_adapter.0.weight of shape"),
        (
            {"early_adapter__enabled": False},
            "early_adapter.enabled = False",
            "early_adapters.0.0.weight in the weights",
        ),
        (
            {"tying__tie_early_to_final": False},
            "neither tying.tie_early_to_final nor tying.tie_early_to_embeddings is true",
            "no early_lm_heads in the weights",
        ),
    ],
)
def test_contradiction_names_both_sides(
    tmp_path: Path, changes: dict[str, Any], asked: str, found: str
) -> None:
    error = refusal(write_nvium(tmp_path, settings=changed(NVIUM, **changes)))
    assert asked in error.asked and ".hydra/config.yaml" in error.asked
    assert found in error.found


def test_enabled_adapter_that_is_not_stored(tmp_path: Path) -> None:
    error = refusal(write_nvium(tmp_path, replace(EXITS, final_adapter_size=None)))
    assert "final_adapter.enabled = True" in error.asked
    assert error.found == "no final_adapter.0.weight in the weights"


@pytest.mark.parametrize(
    ("changes", "asked", "found"),
    [
        (
            {"router__router_type": "llama"},
            "router.router_type = 'llama'",
            "simple_deep_mlp are sup",
        ),
        ({"router__router_temp": 0}, "router.router_temp", "0"),
        ({"router__router_temp": "${x}"}, "router.router_temp", "'${x}'"),
        ({"early_layer_idx": None}, "early_layer_idx", "no such key"),
        ({"early_layer_idx": ["1"]}, "early_layer_idx", "['1']"),
        ({"router": [1]}, "router in", "[1]"),
        ({"early_adapter__enabled": "yes"}, "early_adapter.enabled", "'yes'"),
    ],
)
def test_malformed_settings(
    tmp_path: Path, changes: dict[str, Any], asked: str, found: str
) -> None:
    error = refusal(write_nvium(tmp_path, settings=changed(NVIUM, **changes)))
    assert asked in error.asked and found in error.found
    assert ".hydra/config.yaml" in error.asked


@pytest.mark.parametrize("layers", [[0, 1], [1, 3], [2, 2]])
def test_exits_at_impossible_layers(tmp_path: Path, layers: list[int]) -> None:
    with pytest.raises(SpecError, match="exits after layers"):
        open_checkpoint(write_nvium(tmp_path, settings=changed(NVIUM, early_layer_idx=layers)))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: [1", "expected ',' or ']'"),
        ("- a\n- b", "a list, not named settings"),
        ("", "a NoneType, not named settings"),
        ("1: 2", "a dict, not named settings"),
        ("a: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
    ],
)
def test_damaged_yaml(tmp_path: Path, text: str, found: str) -> None:
    write_nvium(tmp_path)
    (tmp_path / ".hydra" / "config.yaml").write_text(text)
    error = refusal(tmp_path)
    assert found in error.found and "config.yaml" in error.asked


def test_compiled_checkpoint(tmp_path: Path) -> None:
    write_nvium(tmp_path)
    spec = open_checkpoint(tmp_path).spec
    tensors = {f"_orig_mod.{name}": value for name, value in random_tensors(spec).items()}
    write_checkpoint(tmp_path, tensors)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.spec == spec
    assert checkpoint.tensors["lm_head.weight"].stored_name == "_orig_mod.lm_head.weight"


def test_settings_that_may_not_be_read_are_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(self: Path, **_: object) -> os.stat_result:
        if self.match(".hydra/config.yaml"):
            raise PermissionError(13, "Permission denied", str(self))
        return os.stat(self)

    write_nvium(tmp_path)
    monkeypatch.setattr(Path, "stat", deny)
    with pytest.raises(CheckpointError, match="Permission denied") as caught:
        open_checkpoint(tmp_path)
    assert ".hydra" in caught.value.asked and "read it" in caught.value.fix
