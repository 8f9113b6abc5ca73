"""Sparsification: what is written, and how much of it predictors find."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.exporter.checkpoint.folders import (
    BACKBONE,
    DENSE,
    EXITS,
    LLAMA,
    random_tensors,
    write_checkpoint,
    write_json,
    write_nvium,
    write_shards,
    write_source,
)
from tests.exporter.sparsification.banks import BANKS, PREDICTOR

from quatrain.exporter import export_checkpoint, open_checkpoint, sparsify_checkpoint
from quatrain.exporter.errors import ExportError
from quatrain.exporter.sparsification.settings import choose_rank
from quatrain.exporter.spec import BankTopK, DecoderSpec, Streams
from quatrain.runtime import LLM

INDEX = "model.safetensors.index.json"


def read_config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def test_dense_topk_changes_the_config_and_nothing_else(tmp_path: Path, source: Path) -> None:
    report = sparsify_checkpoint(source, tmp_path / "out", method="dense-topk", **BANKS)
    made = open_checkpoint(tmp_path / "out")
    assert made.spec.feed_forward == BankTopK(8, 2, None, "silu") == report.banks
    assert (tmp_path / "out" / "model.safetensors").samefile(source / "model.safetensors")
    assert set(os.listdir(tmp_path / "out")) == {"config.json", "model.safetensors"}
    banks = {
        "bank_size": 8,
        "top_k": 2,
        "predictor_rank": None,
        "gate_mode": "silu",
        "predictor_activation": None,
        "dense_fallback_layers": [],
    }
    changed = {"architectures": ["LlamaBankTopKForCausalLM"], "bank_topk": banks}
    assert read_config(tmp_path / "out") == read_config(source) | changed
    assert report.layers == [] and report.new_bytes == 0 and report.family == "bank_topk"
    assert set(os.listdir(tmp_path)) == {"dense", "out"}


def test_a_predictor_of_full_rank_finds_every_channel(
    tmp_path: Path, source: Path, ids: Path
) -> None:
    out = tmp_path / "out"
    report = sparsify_checkpoint(source, out, text=ids, window=16, rank=16, **BANKS)
    made = open_checkpoint(out)
    assert made.spec.feed_forward == BankTopK(8, 2, 16, "sigmoid")
    for layer in range(3):
        first, second = (made.tensors[PREDICTOR.format(layer, k)].read() for k in (0, 1))
        gate = made.tensors[f"model.layers.{layer}.mlp.gate_proj.weight"].read()
        assert np.allclose(second @ first, gate, atol=1e-5)
    assert [quality.layer for quality in report.layers] == [0, 1, 2]
    for quality in report.layers:
        assert quality.gate_share == 1
        assert quality.activation_share == quality.activation_ceiling < 1
        assert quality.explained_variance > 1 - 1e-9
    assert (report.fitted_tokens, report.held_out_tokens) == (18 * 16, 2 * 16)
    assert report.new_bytes == 3 * 4 * 16 * (16 + 24)
    assert report.warnings == []
    assert set(os.listdir(tmp_path)) == {"dense", "out", "ids.npy"}


def test_a_higher_rank_finds_more_than_chance_and_a_lower_one(
    tmp_path: Path, source: Path, ids: Path
) -> None:
    shares = []
    for rank in (1, 8):
        out = tmp_path / str(rank)
        report = sparsify_checkpoint(source, out, text=ids, window=16, rank=rank, **BANKS)
        shares.append(np.mean([quality.gate_share for quality in report.layers]))
    assert 0.25 < shares[0] < shares[1] < 1  # by chance it is 2 of 8


def test_a_predictor_is_no_wider_than_a_network_narrower_than_its_input(
    tmp_path: Path, ids: Path
) -> None:
    spec = replace(DENSE, backbone=replace(BACKBONE, intermediate_size=4))
    tensors = random_tensors(spec, np.float32)
    source = write_checkpoint(tmp_path / "dense", tensors, intermediate_size=4)
    flags: dict[str, Any] = {"text": ids, "window": 16, "bank_size": 4, "top_k": 2}
    assert sparsify_checkpoint(source, tmp_path / "out", **flags).banks.predictor_rank == 4
    with pytest.raises(ExportError, match=r"rank 5[\s\S]*1 to 4"):
        sparsify_checkpoint(source, tmp_path / "more", rank=5, **flags)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_the_result_is_stored_as_the_source_and_generates(
    tmp_path: Path, ids: Path, dtype: Any
) -> None:
    source = write_source(tmp_path / "dense", dtype)
    out = tmp_path / "out"
    sparsify_checkpoint(source, out, text=ids, window=16, rank=8, gate_mode="silu", **BANKS)
    made = open_checkpoint(out)
    assert {tensor.dtype for tensor in made.tensors.values()} == {
        open_checkpoint(source).tensors["model.norm.weight"].dtype
    }
    index = json.loads((out / INDEX).read_text())
    assert index["weight_map"].keys() == made.tensors.keys()
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in made.tensors.values())
    export_checkpoint(out, tmp_path / "bundle", self_test=True)
    with LLM(tmp_path / "bundle", self_test=True) as llm:
        assert np.isfinite(llm.logits([1, 2, 3])).all()


def test_shards_and_streams_keep_what_they_have(tmp_path: Path, ids: Path) -> None:
    spec = DecoderSpec(BACKBONE, streams=Streams(2))
    tensors = random_tensors(spec, np.float16)
    names = sorted(tensors)
    shards = {
        "model-00001-of-00002.safetensors": {name: tensors[name] for name in names[::2]},
        "model-00002-of-00002.safetensors": {name: tensors[name] for name in names[1::2]},
    }
    write_json(tmp_path / "dense" / "config.json", {**LLAMA, "scale_seq_times": 1})
    source = write_shards(tmp_path / "dense", shards)
    sparsify_checkpoint(source, tmp_path / "out", text=ids, window=16, rank=4, **BANKS)
    made = open_checkpoint(tmp_path / "out")
    assert made.spec.family == "hidden_decoding+bank_topk"
    files = {file.name for file in made.files}
    assert files == {*shards, "model-bank-topk.safetensors"}
    sparsify_checkpoint(source, tmp_path / "post", method="dense-topk", **BANKS)
    assert {file.name for file in open_checkpoint(tmp_path / "post").files} == shards.keys()


def test_exits_keep_their_settings(tmp_path: Path, ids: Path) -> None:
    source = write_nvium(tmp_path / "nvium")
    sparsify_checkpoint(source, tmp_path / "out", text=ids, window=16, rank=4, **BANKS)
    spec = open_checkpoint(tmp_path / "out").spec
    assert spec.family == "bank_topk+nvium" and spec.exits == EXITS


def test_the_default_rank_is_that_of_the_paper(tmp_path: Path, source: Path) -> None:
    opened = open_checkpoint(source)
    backbone = replace(opened.spec.backbone, hidden_size=4096, intermediate_size=14336)
    large = replace(opened, spec=replace(opened.spec, backbone=backbone))
    assert choose_rank(large, None) == 448
    assert choose_rank(opened, None) == 8


def test_few_tokens_are_told(tmp_path: Path, source: Path, ids: Path) -> None:
    out = tmp_path / "out"
    report = sparsify_checkpoint(source, out, text=ids, window=16, tokens=50, **BANKS)
    [warning] = report.warnings
    assert "only 32 tokens" in warning and "64" in warning
    assert (report.fitted_tokens, report.held_out_tokens) == (32, 16)


@pytest.mark.parametrize(
    ("at", "place"),
    [
        ("ft_exp_config.yaml", "ft_exp_config.yaml"),
        (".hydra/config.yaml", ".hydra/config.yaml"),
        ("../.hydra/config.yaml", ".hydra/config.yaml"),
        ("../../.hydra/config.yaml", ".hydra/config.yaml"),
    ],
)
def test_nvium_settings_come_along_from_wherever_they_are_found(
    at: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_nvium(tmp_path / "run" / "checkpoints" / "step_1", at=at)
    before = open_checkpoint(source)
    monkeypatch.chdir(source.parent)
    for name, output in (("step_1", "relative"), (str(source), "absolute")):
        sparsify_checkpoint(Path(name), Path(output), method="dense-topk", **BANKS)
        made = open_checkpoint(Path(output))
        assert made.settings_file == source.with_name(output) / place
        assert made.spec.exits == before.spec.exits == EXITS
