"""Expansion makes tables that are copies of the old ones, in turn, whatever those are called."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.exporter.checkpoint.folders import (
    BACKBONE,
    random_tensors,
    write_checkpoint,
    write_dense,
)
from tests.exporter.expansion.sources import (
    QWEN3,
    qwen3_spec,
    read_table,
    write_qwen3,
    write_streams,
)

from quatrain.exporter import expand_checkpoint, open_checkpoint
from quatrain.exporter import progress as progress_module
from quatrain.exporter.checkpoint.lazy_tensor import LazyTensor
from quatrain.exporter.checkpoint.names import EMBEDDINGS, LM_HEAD, stream_table_name
from quatrain.exporter.spec import DecoderSpec, Streams


def write_llama(folder: Path, tied: bool) -> Path:
    spec = DecoderSpec(replace(BACKBONE, tie_word_embeddings=tied))
    return write_checkpoint(folder, random_tensors(spec), tie_word_embeddings=tied)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_dense_becomes_two_equal_streams(tmp_path: Path, family: str, tied: bool) -> None:
    source = (write_qwen3 if family == "qwen3" else write_llama)(tmp_path / "dense", tied)
    before = open_checkpoint(source)
    report = expand_checkpoint(source, tmp_path / "out", num_streams=2)
    after = open_checkpoint(tmp_path / "out")
    assert after.spec.streams == Streams(2)
    assert after.spec.backbone == before.spec.backbone
    assert after.tensors.keys() == before.tensors.keys() | {stream_table_name(1)}
    for name, tensor in before.tensors.items():
        assert np.array_equal(after.tensors[name].read(), tensor.read()), name
    assert read_table(tmp_path / "out", 1) == read_table(source, 0)
    table = 48 * 16
    assert report.new_bytes == 2 * table
    assert report.after.num_parameters - report.before.num_parameters == table
    # 3 layers, keys and values of 2 heads of 4 numbers, in 16 bits
    assert report.before.kv_bytes_per_token == 3 * 2 * 2 * 4 * 2
    assert report.after.kv_bytes_per_token == 2 * report.before.kv_bytes_per_token


def test_doubling_three_times_is_as_good_as_once(tmp_path: Path) -> None:
    source = write_dense(tmp_path / "1")
    for old, new in ((1, 2), (2, 4), (4, 8)):
        expand_checkpoint(tmp_path / str(old), tmp_path / str(new), num_streams=new)
    expand_checkpoint(source, tmp_path / "direct", num_streams=8)
    assert open_checkpoint(tmp_path / "8").spec == open_checkpoint(tmp_path / "direct").spec
    for stream in range(8):
        assert read_table(tmp_path / "8", stream) == read_table(source, 0)
        assert read_table(tmp_path / "direct", stream) == read_table(source, 0)


@pytest.mark.parametrize("num_streams", [3, 4, 5])
def test_new_tables_repeat_the_old_ones_in_turn(tmp_path: Path, num_streams: int) -> None:
    source = write_streams(tmp_path / "two")
    assert read_table(source, 0) != read_table(source, 1)
    expand_checkpoint(source, tmp_path / "out", num_streams=num_streams)
    for stream in range(num_streams):
        assert read_table(tmp_path / "out", stream) == read_table(source, stream % 2)


@pytest.mark.parametrize("prefix", ["_orig_mod.", ""])
def test_compiled_and_tied_heads_work(tmp_path: Path, prefix: str) -> None:
    tensors = random_tensors(qwen3_spec(tied=True))
    tensors[LM_HEAD] = tensors.pop(EMBEDDINGS)
    stored = {prefix + name: array for name, array in tensors.items()}
    source = write_checkpoint(tmp_path / "dense", stored, QWEN3, tie_word_embeddings=True)
    expand_checkpoint(source, tmp_path / "2", num_streams=2)
    expand_checkpoint(tmp_path / "2", tmp_path / "4", num_streams=4)
    for stream in range(4):
        assert read_table(tmp_path / "4", stream) == tensors[LM_HEAD].tobytes()


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("pattern", ["_orig_mod.model.scale_seq_emb.{}.weight", "scale_seq_{}"])
def test_tables_of_other_names_are_continued(tmp_path: Path, pattern: str, first: int) -> None:
    tensors = random_tensors(DecoderSpec(BACKBONE, streams=Streams(2)))
    tensors[pattern.format(first)] = tensors.pop(stream_table_name(1))
    source = write_streams(tmp_path / "two", tensors)
    report = expand_checkpoint(source, tmp_path / "out", num_streams=12)
    assert report.new_tables == [pattern.format(first + k) for k in range(1, 11)]
    for stream in range(12):
        assert read_table(tmp_path / "out", stream) == read_table(source, stream % 2)


def test_tables_stream_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_dense(tmp_path / "dense")
    chunks = LazyTensor.chunks
    asked: list[int] = []

    def count(self: LazyTensor, chunk_bytes: int = 0) -> Any:
        asked.append(chunk_bytes)
        return chunks(self, 100)  # no divisor of the table's 1536 bytes

    monkeypatch.setattr(LazyTensor, "chunks", count)
    expand_checkpoint(source, tmp_path / "out", num_streams=2)
    monkeypatch.undo()
    assert len(asked) == 1 and 0 < asked[0] <= 1 << 24
    assert read_table(tmp_path / "out", 1) == read_table(source, 0)


def test_progress_names_every_table(tmp_path: Path) -> None:
    lines: list[str] = []
    progress = progress_module.Progress(lines.append)
    source = write_dense(tmp_path / "dense")
    report = expand_checkpoint(source, tmp_path / "out", num_streams=3, progress=progress)
    assert [stage.name for stage in report.stages] == [
        "read checkpoint",
        "place weights",
        "write tables",
        "check result",
    ]
    for stream in (1, 2):
        assert any(stream_table_name(stream) in line for line in lines)
