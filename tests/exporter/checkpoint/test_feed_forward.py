"""The width axis: `bank_topk` in config.json, and predictors that belong to it or to nothing."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.exporter.checkpoint.folders import (
    BACKBONE,
    DENSE,
    EXITS,
    GOLDEN,
    LLAMA,
    random_tensors,
    write_checkpoint,
    write_nvium,
)

from quatrain.exporter.checkpoint import (
    IncompleteCheckpointError,
    expected_tensors,
    open_checkpoint,
)
from quatrain.exporter.checkpoint.feed_forward import read_bank_top_k
from quatrain.exporter.checkpoint.fields import Fields
from quatrain.exporter.errors import CheckpointError, SpecError
from quatrain.exporter.expansion import expand_checkpoint
from quatrain.exporter.spec import BankTopK, DecoderSpec, Streams
from quatrain.runtime.errors import QuatrainError

SETTINGS: dict[str, Any] = {"bank_size": 8, "top_k": 2, "predictor_rank": 5}
BANKS = BankTopK(8, 2, 5)
SPEC = DecoderSpec(BACKBONE, feed_forward=BANKS)


def read(**changes: object) -> BankTopK | None:
    config = {**LLAMA, "bank_topk": SETTINGS | changes}
    return read_bank_top_k(Fields(config, "config.json"))


def refusal(settings: object) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        read_bank_top_k(Fields({**LLAMA, "bank_topk": settings}, "config.json"))
    return caught.value


def write(folder: Path, spec: DecoderSpec = SPEC, **config: object) -> Path:
    return write_checkpoint(folder, random_tensors(spec), **{"bank_topk": SETTINGS, **config})


def opening_refusal(path: Path) -> QuatrainError:
    with pytest.raises(QuatrainError) as caught:
        open_checkpoint(path)
    return caught.value


# --- settings ---


@pytest.mark.parametrize("config", [{}, {"bank_topk": None}])
def test_a_plain_decoder_has_no_banks(config: dict[str, Any]) -> None:
    assert read_bank_top_k(Fields(config, "config.json")) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, BANKS),
        ({"gate_mode": None, "predictor_activation": None, "dense_fallback_layers": None}, BANKS),
        ({"gate_mode": "hard"}, replace(BANKS, gate_mode="hard")),
        ({"gate_mode": "silu"}, replace(BANKS, gate_mode="silu")),
        ({"predictor_activation": "relu"}, replace(BANKS, predictor_activation="relu")),
        ({"predictor_activation": "silu"}, replace(BANKS, predictor_activation="silu")),
        ({"dense_fallback_layers": [2, 0]}, replace(BANKS, dense_fallback_layers=(0, 2))),
        ({"predictor_rank": None}, BankTopK(8, 2, None, "silu")),
        ({"predictor_rank": None, "gate_mode": "silu"}, BankTopK(8, 2, None, "silu")),
        ({"a_note_without_value": None}, BANKS),
    ],
)
def test_banks_are_read(changes: dict[str, Any], expected: BankTopK) -> None:
    assert read(**changes) == expected


@pytest.mark.parametrize("key", ["bank_size", "top_k", "predictor_rank"])
def test_sizes_have_no_default(key: str) -> None:
    error = refusal({name: value for name, value in SETTINGS.items() if name != key})
    assert f"bank_topk.{key} in config.json" in error.asked
    assert error.found == "no such key"


@pytest.mark.parametrize(
    ("changes", "asked", "found"),
    [
        ({"bank_size": "8"}, "bank_topk.bank_size in config.json: an integer", "'8'"),
        ({"bank_size": 8.0}, "bank_topk.bank_size in config.json: an integer", "8.0"),
        ({"top_k": True}, "bank_topk.top_k in config.json: an integer", "True"),
        ({"predictor_rank": False}, "bank_topk.predictor_rank in config.json: an int", "False"),
        ({"predictor_rank": "none"}, "bank_topk.predictor_rank in config.json: an int", "'none'"),
        ({"gate_mode": "softmax"}, "bank_topk.gate_mode in config.json: one of sigm", "'softmax'"),
        ({"gate_mode": 1}, "bank_topk.gate_mode in config.json: a string", "1"),
        (
            {"predictor_activation": "none"},
            "bank_topk.predictor_activation in config.json: one of null, relu, silu",
            "'none'",
        ),
        ({"predictor_activation": ["relu"]}, "bank_topk.predictor_activation in", "['relu']"),
        (
            {"predictor_rank": None, "predictor_activation": "relu"},
            "bank_topk.predictor_activation in config.json: null, as bank_topk.predictor_rank is",
            "'relu'",
        ),
        ({"dense_fallback_layers": [True]}, "bank_topk.dense_fallback_layers in", "[True]"),
        ({"dense_fallback_layers": "6"}, "bank_topk.dense_fallback_layers in", "'6'"),
        ({"dense_fallback_layers": [1.0]}, "bank_topk.dense_fallback_layers in", "[1.0]"),
        ({"topk": 2}, "the settings bank_topk of config.json", "bank_topk.topk"),
        ({"routing_bias": False, "x": 0}, "the settings bank_topk", "bank_topk.routing_bias, bank"),
    ],
)
def test_malformed_settings(changes: dict[str, Any], asked: str, found: str) -> None:
    error = refusal(SETTINGS | changes)
    assert error.asked.startswith(asked) and found in error.found


@pytest.mark.parametrize("settings", [True, False, 16, "16 of 64", [64, 16]])
def test_settings_are_an_object(settings: object) -> None:
    assert refusal(settings).asked == "bank_topk in config.json: an object"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"bank_size": 7}, "bank_size"),
        ({"bank_size": 0}, "bank_size"),
        ({"top_k": 9}, "top_k"),
        ({"top_k": 0}, "top_k"),
        ({"predictor_rank": 0}, "predictor of rank 0"),
        ({"predictor_rank": None, "gate_mode": "sigmoid"}, "gate_mode"),
        ({"dense_fallback_layers": [3]}, "dense_fallback_layers"),
        ({"dense_fallback_layers": [-1]}, "dense_fallback_layers"),
        ({"dense_fallback_layers": [1, 1]}, "dense_fallback_layers"),
    ],
)
def test_impossible_banks(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    error = opening_refusal(write(tmp_path, bank_topk=SETTINGS | changes))
    assert isinstance(error, SpecError)
    assert named in f"{error.asked} {error.fix}"


def test_banks_with_biases(tmp_path: Path) -> None:
    biased = DecoderSpec(replace(BACKBONE, mlp_bias=True))
    error = opening_refusal(write(tmp_path, biased, mlp_bias=True))
    assert isinstance(error, SpecError)
    assert "bank-top-k feed-forward with biases" in error.asked and "mlp_bias" in error.fix


# --- checkpoints ---


def test_golden_checkpoint() -> None:
    checkpoint = open_checkpoint(GOLDEN / "bank_topk" / "checkpoint")
    assert checkpoint.spec.family == "bank_topk"
    assert checkpoint.spec.feed_forward == BankTopK(64, 16, 24)
    assert checkpoint.spec.backbone.attention_bias and checkpoint.leftovers == []
    stored = load_file(GOLDEN / "bank_topk" / "checkpoint" / "model.safetensors")
    assert {n: v.shape for n, v in stored.items()} == expected_tensors(checkpoint.spec)
    assert checkpoint.tensors["model.layers.3.mlp.predictor.1.weight"].shape == (192, 24)


@pytest.mark.parametrize("suffix", ["", "_scale_seq"])
@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("llama", {}),
        ("qwen2", {"attention_bias": True}),
        ("qwen3", {"qk_norm": True}),
    ],
)
def test_every_backbone_may_have_banks(
    tmp_path: Path, model_type: str, changes: dict[str, Any], suffix: str
) -> None:
    backbone = replace(BACKBONE, model_type=model_type, **changes)
    spec = DecoderSpec(backbone, streams=Streams(3) if suffix else None, feed_forward=BANKS)
    path = write(
        tmp_path,
        spec,
        model_type=f"{model_type}{suffix}",
        head_dim=4,
        scale_seq_times=2 if suffix else None,
    )
    opened = open_checkpoint(path)
    assert opened.spec == spec
    assert opened.spec.family == ("hidden_decoding+bank_topk" if suffix else "bank_topk")


def test_banks_with_exits(tmp_path: Path) -> None:
    write_nvium(tmp_path)
    spec = DecoderSpec(BACKBONE, feed_forward=BANKS, exits=EXITS)
    opened = open_checkpoint(write(tmp_path, spec))
    assert opened.spec == spec and opened.spec.family == "bank_topk+nvium"


def test_without_a_predictor_the_tensors_are_a_dense_decoders(tmp_path: Path) -> None:
    opened = open_checkpoint(write(tmp_path, DENSE, bank_topk=SETTINGS | {"predictor_rank": None}))
    assert opened.spec.feed_forward == BankTopK(8, 2, None, "silu")
    assert opened.tensors.keys() == expected_tensors(DENSE).keys()


@pytest.mark.parametrize("settings", [None, SETTINGS | {"predictor_rank": None}])
def test_predictors_that_config_json_knows_nothing_of(tmp_path: Path, settings: object) -> None:
    error = opening_refusal(write(tmp_path, bank_topk=settings))
    said = "bank_topk.predictor_rank = null" if settings else "no bank_topk"
    assert error.asked.startswith(f"{said} in {tmp_path}")
    assert error.found.startswith(f"6 tensors of predictors in {tmp_path}: model.layers.0.mlp.pre")
    assert "predictor_rank" in error.fix


def test_another_rank_than_the_tensors_have(tmp_path: Path) -> None:
    error = opening_refusal(write(tmp_path, bank_topk=SETTINGS | {"predictor_rank": 4}))
    assert isinstance(error, IncompleteCheckpointError)
    assert len(error.misshapen) == 6 and not error.missing and not error.unexpected
    assert "model.layers.0.mlp.predictor.0.weight [5, 16] instead of [4, 16]" in error.misshapen
    assert "bank_topk.predictor_rank = 4" in error.fix


def test_a_predictor_for_some_layers_only(tmp_path: Path) -> None:
    tensors = random_tensors(SPEC)
    names = [f"model.layers.1.mlp.predictor.{part}.weight" for part in (0, 1)]
    for name in names:
        del tensors[name]
    # Not even where all channels run.
    settings = SETTINGS | {"dense_fallback_layers": [1]}
    error = opening_refusal(write_checkpoint(tmp_path, tensors, bank_topk=settings))
    assert isinstance(error, IncompleteCheckpointError)
    assert error.missing == names
    assert "bank_topk.predictor_rank = 5 in config.json every layer has a predictor" in error.fix


def test_a_predictor_with_biases(tmp_path: Path) -> None:
    tensors = random_tensors(SPEC)
    name = "model.layers.1.mlp.predictor.1.bias"
    tensors[name] = np.zeros(24, ml_dtypes.bfloat16)
    error = opening_refusal(write_checkpoint(tmp_path, tensors, bank_topk=SETTINGS))
    assert isinstance(error, IncompleteCheckpointError)
    assert error.unexpected == [name] and "without biases" in error.fix


def test_other_errors_say_nothing_of_predictors(tmp_path: Path) -> None:
    tensors = random_tensors(SPEC)
    del tensors["model.norm.weight"]
    error = opening_refusal(write_checkpoint(tmp_path, tensors, bank_topk=SETTINGS))
    assert "predictor" not in error.fix


def test_banks_stay_when_streams_are_added(tmp_path: Path) -> None:
    source = Path(shutil.copytree(write(tmp_path / "a"), tmp_path / "b"))
    expand_checkpoint(source, tmp_path / "c", num_streams=2)
    expanded = open_checkpoint(tmp_path / "c").spec
    assert expanded == replace(SPEC, streams=Streams(2))


@pytest.mark.parametrize("key", ["gate_mode", "predictor_activation"])
def test_a_choice_that_may_be_the_models_own_is_not_to_be_corrected(key: str) -> None:
    error = refusal(SETTINGS | {key: "gelu"})
    assert "use a checkpoint" in error.fix and "correct" not in error.fix
