"""The time axis: `hilp` in config.json, and dynamics that belong to it or to nothing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.exporter.checkpoint.folders import (
    BACKBONE,
    DENSE,
    EXITS,
    GOLDEN,
    Arrays,
    random_tensors,
    write_checkpoint,
    write_nvium,
)

from quatrain.exporter.checkpoint import (
    IncompleteCheckpointError,
    expected_tensors,
    open_checkpoint,
)
from quatrain.exporter.errors import CheckpointError, SpecError
from quatrain.exporter.spec import BankTopK, DecoderSpec, Drafter, Streams
from quatrain.runtime.errors import QuatrainError

HILP: dict[str, Any] = {"window": 4, "drafter": "glu_cross", "residual": True}
SPEC = DecoderSpec(BACKBONE, drafter=Drafter("glu_cross", 20))
UPPER: Arrays = {
    name: np.zeros((2, 2), np.float32)
    for name in ("combined_head.out.weight", "swa.norm.weight", "upper_dynamics.up.weight")
}


def write(
    folder: Path, spec: DecoderSpec = SPEC, extra: Arrays | None = None, **config: Any
) -> Path:
    tensors = random_tensors(spec) | (extra or {})
    return write_checkpoint(folder, tensors, **{"hilp": HILP, **config})


def refusal(path: Path) -> QuatrainError:
    with pytest.raises(QuatrainError) as caught:
        open_checkpoint(path)
    return caught.value


def without(*parts: str) -> Arrays:
    names = {f"lower_dynamics.{part}.weight" for part in parts}
    return {name: value for name, value in random_tensors(SPEC).items() if name not in names}


def with_shape(part: str, *shape: int) -> Arrays:
    return random_tensors(SPEC) | {f"lower_dynamics.{part}.weight": np.zeros(shape, np.float32)}


def test_golden_checkpoint() -> None:
    checkpoint = open_checkpoint(GOLDEN / "hilp" / "checkpoint")
    assert checkpoint.spec.family == "hilp" and checkpoint.drafter_absence is None
    assert checkpoint.spec.drafter == Drafter("glu_cross", 256)
    assert checkpoint.document_token_id is None
    assert {name.split(".")[0] for name in checkpoint.leftovers} == {
        "combined_head",
        "swa",
        "upper_dynamics",
    }
    assert len(checkpoint.leftovers) == 11


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (HILP, Drafter("glu_cross", 20)),
        ({"drafter": "glu_cross"}, Drafter("glu_cross", 20)),
        (HILP | {"residual": False}, Drafter("glu_cross", 20, False)),
        (HILP | {"residual": None}, Drafter("glu_cross", 20)),
        (HILP | {"drafter": "concat"}, Drafter("concat", 20)),
        (HILP | {"roll_out": 4, "loss_weights": [1.0, 10.0]}, Drafter("glu_cross", 20)),
    ],
)
def test_drafters_are_read(tmp_path: Path, settings: dict[str, Any], expected: Drafter) -> None:
    spec = DecoderSpec(BACKBONE, drafter=expected)
    opened = open_checkpoint(write(tmp_path, spec, UPPER, hilp=settings))
    assert opened.spec == spec and opened.leftovers == list(UPPER)
    assert {n: t.shape for n, t in opened.tensors.items()} == expected_tensors(spec)


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [("qwen2", {"attention_bias": True}), ("qwen3", {"qk_norm": True})],
)
def test_other_backbones_with_banks(tmp_path: Path, model_type: str, changes: Any) -> None:
    backbone = replace(BACKBONE, model_type=model_type, **changes)
    spec = replace(SPEC, backbone=backbone, feed_forward=BankTopK(8, 2, 5))
    banks = {"bank_size": 8, "top_k": 2, "predictor_rank": 5}
    opened = open_checkpoint(
        write(tmp_path, spec, model_type=model_type, head_dim=4, bank_topk=banks)
    )
    assert opened.spec == spec and opened.spec.family == "bank_topk+hilp"


@pytest.mark.parametrize("settings", [HILP, {}, {"window": 4}, None])
def test_upper_without_lower_dynamics_is_a_plain_decoder(tmp_path: Path, settings: object) -> None:
    opened = open_checkpoint(write(tmp_path, DENSE, UPPER, hilp=settings))
    assert opened.spec == DENSE and opened.leftovers == list(UPPER)
    assert opened.drafter_absence is not None
    assert opened.drafter_absence.startswith("no lower_dynamics.* in the checkpoint, only")
    assert "upper_dynamics.up.weight" in opened.drafter_absence


@pytest.mark.parametrize("settings", [None, HILP])
def test_a_plain_decoder_says_so(tmp_path: Path, settings: object) -> None:
    opened = open_checkpoint(write(tmp_path, DENSE, hilp=settings))
    assert opened.spec == DENSE and opened.leftovers == []
    assert opened.drafter_absence == "no lower_dynamics.* in the checkpoint"


def test_lower_dynamics_that_config_json_knows_nothing_of(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, hilp=None))
    assert isinstance(error, CheckpointError)
    assert error.asked.startswith(f"no hilp in {tmp_path}")
    assert error.found.startswith(f"5 tensors of them in {tmp_path}: lower_dynamics.down.weight")
    assert "glu_cross or concat" in error.fix


@pytest.mark.parametrize("spec", [SPEC, DENSE])
@pytest.mark.parametrize(
    ("changes", "asked", "found"),
    [
        ({"drafter": "mlp"}, "hilp.drafter in {}: one of glu_cross, concat", "'mlp'"),
        ({"drafter": "nextlat"}, "hilp.drafter in {}: one of glu_cross, concat", "'nextlat'"),
        ({"drafter": 1}, "hilp.drafter in {}: a string", "1"),
        ({"residual": 1}, "hilp.residual in {}: true or false", "1"),
    ],
)
def test_malformed_settings(
    tmp_path: Path, spec: DecoderSpec, changes: dict[str, Any], asked: str, found: str
) -> None:
    error = refusal(write(tmp_path, spec, hilp=HILP | changes))
    assert error.asked == asked.format(tmp_path / "config.json") and error.found == found


def test_the_kind_has_no_default(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, hilp={"window": 4}))
    assert error.asked.startswith("hilp.drafter in") and error.found == "no such key"


@pytest.mark.parametrize("settings", [True, False, 4, "glu_cross", []])
def test_settings_are_an_object(tmp_path: Path, settings: object) -> None:
    assert refusal(write(tmp_path, hilp=settings)).asked.endswith("config.json: an object")


@pytest.mark.parametrize(
    ("part", "shape", "needed"),
    [
        ("up", (21, 16), (20, 16)),
        ("down", (16, 21), (16, 20)),
        ("w_h", (15, 16), (16, 16)),
        ("w_e", (16,), (16, 16)),
        ("gate", (20, 32), (20, 16)),
    ],
)
def test_widths_that_do_not_fit(
    tmp_path: Path, part: str, shape: tuple[int, ...], needed: tuple[int, ...]
) -> None:
    error = refusal(write_checkpoint(tmp_path, with_shape(part, *shape), hilp=HILP))
    assert isinstance(error, IncompleteCheckpointError)
    name = f"lower_dynamics.{part}.weight"
    assert error.misshapen == [f"{name} {list(shape)} instead of {list(needed)}"]
    assert "of the kind glu_cross, without biases, and of width 20" in error.fix


def test_a_gate_of_another_width_than_the_rest(tmp_path: Path) -> None:
    error = refusal(write_checkpoint(tmp_path, with_shape("gate", 24, 16), hilp=HILP))
    assert isinstance(error, IncompleteCheckpointError)
    assert [text.split(" ")[0] for text in error.misshapen] == [
        "lower_dynamics.up.weight",
        "lower_dynamics.down.weight",
    ]
    assert "width 24, which is that of their first matrix" in error.fix


@pytest.mark.parametrize("shape", [(20,), (20, 16, 1), ()])
def test_a_gate_that_is_no_matrix(tmp_path: Path, shape: tuple[int, ...]) -> None:
    error = refusal(write_checkpoint(tmp_path, with_shape("gate", *shape), hilp=HILP))
    assert error.asked.endswith("that of lower_dynamics.gate.weight")
    assert error.found == f"a tensor of shape {list(shape)}"


def test_no_gate(tmp_path: Path) -> None:
    error = refusal(write_checkpoint(tmp_path, without("gate"), hilp=HILP))
    assert error.found.startswith("only lower_dynamics.down.weight, lower_dynamics.up.weight")


def test_a_drafter_of_no_width(tmp_path: Path) -> None:
    error = refusal(write_checkpoint(tmp_path, with_shape("gate", 0, 16), hilp=HILP))
    assert isinstance(error, SpecError) and error.asked == "a drafter of width 0"


def test_a_kind_that_is_not_the_tensors(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, hilp=HILP | {"drafter": "concat"}))
    assert isinstance(error, IncompleteCheckpointError)
    assert error.unexpected == ["lower_dynamics.w_e.weight", "lower_dynamics.w_h.weight"]
    assert "of the kind concat" in error.fix


def test_parts_that_are_missing_or_unknown(tmp_path: Path) -> None:
    bias = {"lower_dynamics.up.bias": np.zeros(20, np.float32)}
    error = refusal(write_checkpoint(tmp_path, without("w_e") | bias, hilp=HILP))
    assert isinstance(error, IncompleteCheckpointError)
    assert error.missing == ["lower_dynamics.w_e.weight"]
    assert error.unexpected == ["lower_dynamics.up.bias"] and "without biases" in error.fix


def test_other_faults_say_nothing_of_dynamics(tmp_path: Path) -> None:
    tensors = random_tensors(SPEC)
    del tensors["model.norm.weight"]
    assert "dynamics" not in refusal(write_checkpoint(tmp_path, tensors, hilp=HILP)).fix


def test_drafting_with_streams(tmp_path: Path) -> None:
    streams = DecoderSpec(BACKBONE, streams=Streams(2))
    lower = {n: v for n, v in random_tensors(SPEC).items() if n.startswith("lower_dynamics.")}
    error = refusal(write(tmp_path, streams, lower, scale_seq_times=1))
    assert isinstance(error, SpecError)
    assert "latent drafting (HiLP, NextLat) together with Hidden Decoding" in error.asked


def test_drafting_with_exits(tmp_path: Path) -> None:
    write_nvium(tmp_path)
    lower = {n: v for n, v in random_tensors(SPEC).items() if n.startswith("lower_dynamics.")}
    error = refusal(write(tmp_path, DecoderSpec(BACKBONE, exits=EXITS), lower))
    assert isinstance(error, SpecError)
    assert "latent drafting (HiLP, NextLat) together with N-vium" in error.asked
