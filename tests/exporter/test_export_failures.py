"""Exports that fail leave nothing, and weights that change after one are noticed."""

import errno
import os
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.exporter.checkpoint.folders import GOLDEN_NVIUM, write_dense

from quatrain.exporter.checkpoint import open_checkpoint
from quatrain.exporter.errors import ExportError
from quatrain.exporter.export import export_checkpoint, plan_export
from quatrain.runtime import LLM
from quatrain.runtime.errors import QuatrainError


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of the test's own, so that it may be damaged."""
    return Path(shutil.copytree(GOLDEN_NVIUM, tmp_path / "source" / "checkpoint"))


def test_weights_changed_after_the_export_are_noticed(checkpoint: Path, tmp_path: Path):
    export_checkpoint(checkpoint, tmp_path / "b", self_test=False)
    with (checkpoint / "model.safetensors").open("r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(b"\x00\x00")
    os.utime(checkpoint / "model.safetensors", ns=(1, 1))
    with pytest.raises(QuatrainError, match=r"model\.safetensors"):
        LLM(tmp_path / "b")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"max_seq_len": 257}, "--max-seq-len"),
        ({"max_seq_len": 0}, "--max-seq-len"),
        ({"max_batch": 0}, "--max-batch"),
        ({"prefill_chunk": -1}, "--prefill-chunk"),
        ({"max_deferred": 0}, "--max-deferred"),
        ({"targets": ["h100"]}, "rtx3090"),
        ({"embeddings": "device"}, "graph, host"),
    ],
)
def test_impossible_settings_are_refused(tmp_path: Path, settings: dict, named: str):
    with pytest.raises(QuatrainError, match=named):
        export_checkpoint(GOLDEN_NVIUM, tmp_path / "b", **settings)
    assert os.listdir(tmp_path) == []


def test_rotary_tables_that_no_onnx_file_holds_are_refused(tmp_path: Path):
    checkpoint = write_dense(tmp_path / "c", max_position_embeddings=10**12)
    fits = plan_export(checkpoint, max_seq_len=125_000_000)
    assert fits.max_seq_len == 125_000_000
    for max_seq_len in (125_000_001, 10**12):
        with pytest.raises(ExportError, match=r"--max-seq-len.*\n.*rotary.*\n.*125000000 or less"):
            export_checkpoint(checkpoint, tmp_path / "b", max_seq_len=max_seq_len)
    assert os.listdir(tmp_path) == ["c"]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("settings", [{"weights": "copy", "self_test": False}, {"self_test": True}])
def test_bad_weights_are_named_by_an_export_that_reads_them(
    checkpoint: Path, tmp_path: Path, value: float, settings: dict
):
    tensor = open_checkpoint(checkpoint).tensors["early_norms.1.weight"]
    with (checkpoint / "model.safetensors").open("r+b") as file:
        file.seek(tensor.offset + 6)
        file.write(np.array([value], ml_dtypes.bfloat16).tobytes())
    with pytest.raises(ExportError, match=r"early_norms\.1\.weight"):
        export_checkpoint(checkpoint, tmp_path / "out" / "b", **settings)
    assert os.listdir(tmp_path / "out") == []


STAGES = [
    "export.place_checkpoint",
    "export.refuse_bad_weights",
    "export.write_graphs",
    "export.copy_tokenizer",
    "export.write_file",
    "self_test.make_self_test",
    "verification.verify_export",
    "engine.engines.build_engines",
]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full"), MemoryError()]
)
def test_a_failure_in_any_stage_leaves_nothing(
    checkpoint: Path, tmp_path: Path, monkeypatch, stage: str, error: BaseException
):
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    before = (checkpoint / "model.safetensors").read_bytes()
    monkeypatch.setattr(f"quatrain.exporter.{stage}", fail)
    expected = ExportError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected):
        export_checkpoint(checkpoint, tmp_path / "out" / "b", targets=["a6000"], verify=True)
    assert os.listdir(tmp_path / "out") == []
    assert (checkpoint / "model.safetensors").read_bytes() == before
