"""Sparsifications that are refused: settings, places, texts, and weights."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.exporter.checkpoint.folders import BACKBONE, DENSE, random_tensors, write_checkpoint
from tests.exporter.sparsification.banks import BANKS

from quatrain.exporter import sparsify_checkpoint
from quatrain.exporter.errors import ExportError
from quatrain.runtime.errors import QuatrainError


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
        ({"method": "dense-topk"}, r"--text, --window with --method dense-topk"),
        ({"method": "dense-topk", "text": None, "gate_mode": "hard"}, r"--gate-mode hard"),
        ({"method": "dense-topk", "text": None, "rank": 4, "window": None}, r"--rank with"),
        ({"method": "dense-topk", "text": None, "window": 512}, r"--window with"),
        ({"method": "dense-topk", "text": None, "work": Path("w")}, r"--window, --work with"),
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
        "floats.npy": r"an array of float64 \[400\]",
        "large.npy": "a vocabulary of 48",
        "broken.npy": "no NumPy array",
        "empty.npy": "no NumPy array",
        "absent.npy": "No such file",
    }.items():
        with pytest.raises(QuatrainError, match=message):
            sparsify_checkpoint(source, tmp_path / "out", text=tmp_path / name, window=16, **BANKS)


@pytest.mark.parametrize("name", ["0.self_attn.o_proj", "2.mlp.gate_proj"])
def test_weights_that_are_not_finite_are_told(tmp_path: Path, ids: Path, name: str) -> None:
    tensors = random_tensors(DENSE, np.float32)
    tensors[f"model.layers.{name}.weight"][0, 0] = np.nan
    source = write_checkpoint(tmp_path / "dense", tensors)
    with pytest.raises(ExportError, match="not finite"):
        sparsify_checkpoint(source, tmp_path / "out", text=ids, window=16, **BANKS)
    assert not (tmp_path / "out").exists()
