"""Missing, unexpected, misshapen and tied tensors."""

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.exporter.checkpoint.folders import (
    BACKBONE,
    DENSE,
    EXITS,
    NVIUM,
    changed,
    random_tensors,
    write_checkpoint,
    write_dense,
    write_nvium,
    write_settings,
)

from quatrain.exporter.checkpoint import IncompleteCheckpointError, open_checkpoint
from quatrain.exporter.errors import CheckpointError
from quatrain.exporter.spec import DecoderSpec

TIED = DecoderSpec(replace(BACKBONE, tie_word_embeddings=True))
NVIUM_SPEC = DecoderSpec(BACKBONE, exits=EXITS)


def refusal(folder: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    return caught.value


def test_one_error_lists_everything(tmp_path: Path) -> None:
    tensors = random_tensors(DENSE)
    del tensors["model.norm.weight"]
    tensors["model.layers.0.mlp.up_proj.bias"] = np.zeros(24, np.float32)
    tensors["lm_head.weight"] = np.zeros((49, 16), np.float32)
    error = refusal(write_checkpoint(tmp_path, tensors))
    assert isinstance(error, IncompleteCheckpointError)
    assert error.missing == ["model.norm.weight"]
    assert error.unexpected == ["model.layers.0.mlp.up_proj.bias"]
    assert error.misshapen == ["lm_head.weight [49, 16] instead of [48, 16]"]
    assert error.found == (
        "1 missing: model.norm.weight; 1 unexpected: model.layers.0.mlp.up_proj.bias; "
        "1 of another shape: lm_head.weight [49, 16] instead of [48, 16]"
    )
    assert error.asked == f"the 30 tensors of a dense llama decoder in {tmp_path}"


def test_long_lists_are_cut_in_the_message_only(tmp_path: Path) -> None:
    tensors = random_tensors(DENSE)
    kept = {name: value for name, value in tensors.items() if ".layers." not in name}
    extra = {f"x.{i}": np.zeros(1, np.float32) for i in range(20)}
    error = refusal(write_checkpoint(tmp_path, kept | extra))
    assert isinstance(error, IncompleteCheckpointError)
    assert "27 missing: model.layers.0" in error.found and "+15 more" in error.found
    assert "20 unexpected: x.0" in error.found and "+8 more" in error.found
    assert len(error.missing) == 27 and len(error.unexpected) == 20


def test_missing_adapter_of_one_exit(tmp_path: Path) -> None:
    write_nvium(tmp_path)
    tensors = random_tensors(NVIUM_SPEC)
    del tensors["early_adapters.1.2.weight"]
    error = refusal(write_checkpoint(tmp_path, tensors))
    assert error.found == "1 missing: early_adapters.1.2.weight"
    assert "nvium llama decoder" in error.asked


def test_leftovers_of_training_are_skipped_and_listed(tmp_path: Path) -> None:
    junk = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(2, np.float32),
        "model.rotary_emb.inv_freq": np.ones(2, np.float32),
        "model.layers.0.attn.masked_bias": np.array(1, np.int64),
        "optimizer.state.0.exp_avg": np.ones(3, np.float32),
        "global_step": np.array([3], np.int64),
    }
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, random_tensors(DENSE) | junk))
    assert checkpoint.leftovers == sorted(junk)
    assert set(checkpoint.tensors) == set(random_tensors(DENSE))


def test_tied_head_stored_as_well_is_left_over(tmp_path: Path) -> None:
    tensors = random_tensors(TIED)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, tensors, tie_word_embeddings=True))
    assert checkpoint.leftovers == ["lm_head.weight"]
    assert "lm_head.weight" not in checkpoint.tensors
    # The same numbers in another dtype are the same numbers.
    tensors["lm_head.weight"] = tensors["lm_head.weight"].astype(np.float32)
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, tensors, tie_word_embeddings=True))
    assert checkpoint.leftovers == ["lm_head.weight"]


def test_tied_embeddings_stored_under_the_heads_name(tmp_path: Path) -> None:
    tensors = random_tensors(TIED)
    table = tensors.pop("model.embed_tokens.weight")
    tensors["lm_head.weight"] = table
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, tensors, tie_word_embeddings=True))
    tensor = checkpoint.tensors["model.embed_tokens.weight"]
    assert (tensor.name, tensor.stored_name) == ("model.embed_tokens.weight", "lm_head.weight")
    np.testing.assert_array_equal(tensor.read(), table)
    assert checkpoint.leftovers == []


@pytest.mark.parametrize("rows", [47, 48])
def test_tied_head_with_other_numbers(tmp_path: Path, rows: int) -> None:
    tensors = random_tensors(TIED)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"][:rows] * 2
    error = refusal(write_checkpoint(tmp_path, tensors, tie_word_embeddings=True))
    assert "lm_head.weight tied to model.embed_tokens.weight" in error.asked
    assert "both are stored, and they differ" in error.found
    assert "tie_word_embeddings" in error.fix


def test_tied_early_heads_stored_as_well(tmp_path: Path) -> None:
    write_nvium(tmp_path)
    tensors = random_tensors(NVIUM_SPEC)
    for k in range(2):
        tensors[f"early_lm_heads.{k}.weight"] = tensors["lm_head.weight"].copy()
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, tensors))
    assert checkpoint.leftovers == ["early_lm_heads.0.weight", "early_lm_heads.1.weight"]
    settings = changed(NVIUM, tying__tie_early_to_final=False, tying__tie_early_to_embeddings=True)
    write_settings(tmp_path / ".hydra" / "config.yaml", settings)
    assert "early_lm_heads.0.weight tied to model.embed_tokens.weight" in refusal(tmp_path).asked


def test_one_own_head_missing(tmp_path: Path) -> None:
    exits = replace(EXITS, early_head="own")
    write_nvium(tmp_path, exits, changed(NVIUM, tying__tie_early_to_final=False))
    tensors = random_tensors(DecoderSpec(BACKBONE, exits=exits))
    del tensors["early_lm_heads.1.weight"]
    assert (
        refusal(write_checkpoint(tmp_path, tensors)).found == "1 missing: early_lm_heads.1.weight"
    )


def test_unsupported_dtype_of_a_weight(tmp_path: Path) -> None:
    tensors = random_tensors(DENSE)
    name = "model.layers.1.mlp.up_proj.weight"
    for dtype, stored in [
        (np.int8, "I8"),
        (np.float64, "F64"),
        (ml_dtypes.float8_e4m3fn, "F8_E4M3"),
    ]:
        tensors[name] = np.zeros((24, 16)).astype(dtype)
        error = refusal(write_checkpoint(tmp_path, tensors))
        assert error.found == f"1 others: {name} ({stored})"
        assert "F32, F16, BF16" in error.asked


def test_mixed_dtypes_are_allowed_and_most_bytes_decide(tmp_path: Path) -> None:
    tensors = random_tensors(DENSE)
    name = "model.embed_tokens.weight"  # the largest tensor, but not most of the bytes
    tensors[name] = tensors[name].astype(np.float32)
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, tensors))
    assert checkpoint.stored_dtype == "bfloat16"
    assert checkpoint.tensors[name].dtype == "F32"
    tensors = {name: value.astype(np.float16) for name, value in tensors.items()}
    assert open_checkpoint(write_checkpoint(tmp_path, tensors)).stored_dtype == "float16"


def test_absurd_number_of_layers_is_refused_at_once(tmp_path: Path) -> None:
    error = refusal(write_dense(tmp_path, num_hidden_layers=10**12))
    assert "only 30 tensors" in error.found and "num_hidden_layers" in error.fix
