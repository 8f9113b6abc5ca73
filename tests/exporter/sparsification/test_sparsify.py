"""Sparsification: what is written, what is refused, and that an interrupted one goes on."""

import json
import os
import shutil
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
)

from quatrain.exporter import export_checkpoint, open_checkpoint, sparsify_checkpoint
from quatrain.exporter.errors import ExportError
from quatrain.exporter.progress import Progress
from quatrain.exporter.sparsification import calibration as calibration_module
from quatrain.exporter.sparsification.settings import choose_rank
from quatrain.exporter.spec import BankTopK, DecoderSpec, Streams
from quatrain.runtime import LLM

INDEX = "model.safetensors.index.json"
BANKS: dict[str, Any] = {"bank_size": 8, "top_k": 2}
PREDICTOR = "model.layers.{}.mlp.predictor.{}.weight"


def write_source(folder: Path, dtype: Any = np.float32, spec: DecoderSpec = DENSE) -> Path:
    tensors = random_tensors(spec, dtype)
    # Of a size that keeps activations small enough for any predictor to be told from another.
    tensors = {n: t if t.ndim == 1 else (t / 4).astype(dtype) for n, t in tensors.items()}
    changes = {} if spec.streams is None else {"scale_seq_times": spec.num_streams - 1}
    return write_checkpoint(folder, tensors, **changes)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "dense")


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    """A text of 330 token ids: 20 windows of 16, and some more."""
    path = tmp_path / "ids.npy"
    np.save(path, np.random.default_rng(1).integers(0, 48, 330).astype(np.int32))
    return path


def read_config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


# --- what is written ---


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


# --- interruption ---


def interrupt(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Ctrl-C in the middle of a window, whose rows have been added for some layers by then."""
    monkeypatch.setattr(calibration_module, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr(calibration_module, "_SAVE_SHARE", 0.0)
    run_probe = calibration_module.run_probe
    calls = []

    def run(*args: Any) -> Any:
        calls.append(0)
        yield from run_probe(*args)
        if len(calls) == at:
            raise KeyboardInterrupt

    monkeypatch.setattr(calibration_module, "run_probe", run)


def test_an_interrupted_calibration_goes_on_and_gives_the_same(
    tmp_path: Path, source: Path, ids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags: dict[str, Any] = {"text": ids, "window": 16, "rank": 4, **BANKS}
    sparsify_checkpoint(source, tmp_path / "whole", **flags)
    with monkeypatch.context() as patch:
        interrupt(patch, 8)
        with pytest.raises(KeyboardInterrupt):
            sparsify_checkpoint(source, tmp_path / "out", **flags)
    assert set(os.listdir(tmp_path)) == {"dense", "ids.npy", "whole", "out.partial"}
    assert set(os.listdir(tmp_path / "out.partial")) == {"calibration.json", "moments.npz"}
    lines: list[str] = []
    sparsify_checkpoint(source, tmp_path / "out", **flags, progress=Progress(lines.append))
    assert "  going on after 7 of 18 windows" in lines
    file = "model-00002-of-00002.safetensors"
    assert (tmp_path / "out" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    assert not (tmp_path / "out.partial").exists()


def test_a_named_work_folder_serves_another_rank(
    tmp_path: Path, source: Path, ids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags: dict[str, Any] = {"text": ids, "window": 16, "work": tmp_path / "work", **BANKS}
    sparsify_checkpoint(source, tmp_path / "4", rank=4, **flags)
    interrupt(monkeypatch, 1)  # no window is run again
    sparsify_checkpoint(source, tmp_path / "8", rank=8, **flags)
    first = open_checkpoint(tmp_path / "8").tensors[PREDICTOR.format(0, 0)]
    assert first.shape == (8, 16)


@pytest.mark.parametrize("change", ["window", "tokens", "text", "checkpoint"])
def test_work_of_other_settings_is_refused(
    tmp_path: Path, source: Path, ids: Path, change: str
) -> None:
    flags: dict[str, Any] = {"text": ids, "window": 16, "work": tmp_path / "work", "rank": 4}
    sparsify_checkpoint(source, tmp_path / "first", **flags, **BANKS)
    flags |= {"window": {"window": 15}, "tokens": {"tokens": 200}}.get(change, {})
    if change == "text":
        np.save(ids, np.load(ids)[::-1])
    if change == "checkpoint":
        shutil.rmtree(source)
        write_source(source, np.float16)
    blamed = "checkpoint" if change == "checkpoint" else "text"
    with pytest.raises(ExportError, match=rf"go on with the work[\s\S]*another {blamed}"):
        sparsify_checkpoint(source, tmp_path / "out", **flags, **BANKS)
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_never_work(tmp_path: Path, source: Path, ids: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("1")
    with pytest.raises(ExportError, match="holds something else"):
        sparsify_checkpoint(
            source, tmp_path / "out", text=ids, window=16, work=precious, rank=4, **BANKS
        )
    assert os.listdir(precious) == ["thesis.txt"]


# --- what is refused ---


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"bank_size": 7}, r"24, which is not a whole[\s\S]*2, 3, 4, 6, 8, 12, 24"),
        ({"bank_size": 0}, r"banks of 0"),
        ({"top_k": 0}, r"0 active channels[\s\S]*--top-k from 1 to 8"),
        ({"top_k": 9}, r"9 active channels[\s\S]*--top-k from 1 to 8"),
        ({"text": None}, r"no text to fit[\s\S]*dense-topk"),
        ({"rank": 17}, r"rank 17[\s\S]*1 to 16"),
        ({"rank": 0}, r"rank 0"),
        ({"window": 400}, r"windows of 400[\s\S]*2 to 64"),
        ({"window": 1}, r"windows of 1 "),
        ({"tokens": 31}, r"31 tokens, too few"),
        ({"tokens": -5}, r"too few"),
        ({"method": "magic"}, r"method 'magic'"),
        ({"method": "dense-topk"}, r"--text with --method dense-topk"),
        ({"method": "dense-topk", "text": None, "gate_mode": "hard"}, r"--gate-mode hard"),
        ({"method": "dense-topk", "text": None, "rank": 4}, r"--rank with"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    tmp_path: Path, source: Path, ids: Path, flags: dict[str, Any], message: str
) -> None:
    asked = {"text": ids, "window": 16, **BANKS, **flags}
    with pytest.raises(ExportError, match=message):
        sparsify_checkpoint(source, tmp_path / "out", **asked)
    assert set(os.listdir(tmp_path)) == {"dense", "ids.npy"}


@pytest.mark.parametrize("place", ["out", "out/work", "dense/work"])
def test_work_in_the_output_or_the_source_is_refused_before_any_is_done(
    tmp_path: Path, source: Path, ids: Path, place: str
) -> None:
    before = os.listdir(source)
    with pytest.raises(ExportError, match="keep work in"):
        sparsify_checkpoint(
            source, tmp_path / "out", text=ids, window=16, work=tmp_path / place, **BANKS
        )
    assert set(os.listdir(tmp_path)) == {"dense", "ids.npy"} and os.listdir(source) == before


def test_banks_of_a_prime_number_of_channels(tmp_path: Path) -> None:
    spec = replace(DENSE, backbone=replace(BACKBONE, intermediate_size=257))
    source = write_checkpoint(tmp_path / "dense", random_tensors(spec), intermediate_size=257)
    with pytest.raises(ExportError, match="choose one of 257"):
        sparsify_checkpoint(source, tmp_path / "out", method="dense-topk", bank_size=8)


def test_a_sparse_checkpoint_an_existing_output_and_one_inside_the_source_are_refused(
    tmp_path: Path, source: Path
) -> None:
    flags: dict[str, Any] = {"method": "dense-topk", **BANKS}
    sparsify_checkpoint(source, tmp_path / "out", **flags)
    with pytest.raises(ExportError, match="bank_topk already"):
        sparsify_checkpoint(tmp_path / "out", tmp_path / "again", **flags)
    with pytest.raises(ExportError, match="something is there already"):
        sparsify_checkpoint(source, tmp_path / "out", **flags)
    with pytest.raises(ExportError, match="lies inside the source"):
        sparsify_checkpoint(source, source / "out", **flags)


def test_texts_without_a_tokenizer_and_bad_ids_are_refused(tmp_path: Path, source: Path) -> None:
    (tmp_path / "text.txt").write_text("Some words.")
    np.save(tmp_path / "floats.npy", np.ones(400))
    np.save(tmp_path / "large.npy", np.full(400, 48))
    (tmp_path / "broken.npy").write_bytes(b"no array")
    (tmp_path / "empty.npy").write_bytes(b"")
    for name, message in {
        "text.txt": "no tokenizer.json",
        "floats.npy": "not a one-dimensional array of integers",
        "large.npy": "a vocabulary of 48",
        "broken.npy": "read the token ids",
        "empty.npy": "read the token ids",
        "absent.npy": "No such file",
    }.items():
        with pytest.raises(ExportError, match=message):
            sparsify_checkpoint(source, tmp_path / "out", text=tmp_path / name, window=16, **BANKS)


@pytest.mark.parametrize("name", ["0.self_attn.o_proj", "2.mlp.gate_proj"])
def test_weights_that_are_not_finite_are_told(tmp_path: Path, ids: Path, name: str) -> None:
    tensors = random_tensors(DENSE, np.float32)
    tensors[f"model.layers.{name}.weight"][0, 0] = np.nan
    source = write_checkpoint(tmp_path / "dense", tensors)
    with pytest.raises(ExportError, match="not finite"):
        sparsify_checkpoint(source, tmp_path / "out", text=ids, window=16, **BANKS)
    assert not (tmp_path / "out").exists()
