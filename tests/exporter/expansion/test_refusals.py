"""Expansions that are refused or fail: nothing is left, and nothing old is touched."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.checkpoint.folders import write_dense, write_nvium
from tests.exporter.expansion.sources import expect_nothing, fingerprint, write_streams

from quatrain.exporter import expand_checkpoint
from quatrain.exporter.checkpoint.lazy_tensor import LazyTensor
from quatrain.exporter.derivation import folder as folder_module
from quatrain.exporter.errors import CheckpointError, ExportError


@pytest.mark.parametrize("num_streams", [-1, 0, 1])
def test_fewer_than_two_streams_are_refused(tmp_path: Path, num_streams: int) -> None:
    source = write_dense(tmp_path / "dense")
    with pytest.raises(ExportError, match=r"it has 1[\s\S]*2 or more"):
        expand_checkpoint(source, tmp_path / "out", num_streams=num_streams)
    expect_nothing(tmp_path, {"dense"})


@pytest.mark.parametrize("num_streams", [1, 2])
def test_streams_are_never_fewer_or_the_same(tmp_path: Path, num_streams: int) -> None:
    source = write_streams(tmp_path / "two")
    with pytest.raises(ExportError, match=r"it has 2[\s\S]*3 or more"):
        expand_checkpoint(source, tmp_path / "out", num_streams=num_streams)
    expect_nothing(tmp_path, {"two"})


def test_a_slip_of_the_finger_is_refused(tmp_path: Path) -> None:
    source = write_dense(tmp_path / "dense")
    with pytest.raises(ExportError, match="more than 1024"):
        expand_checkpoint(source, tmp_path / "out", num_streams=10**9)


def test_exits_are_refused_by_name(tmp_path: Path) -> None:
    source = write_nvium(tmp_path / "nvium")
    with pytest.raises(ExportError, match="N-vium"):
        expand_checkpoint(source, tmp_path / "out", num_streams=2)
    expect_nothing(tmp_path, {"nvium"})


def test_an_existing_output_is_refused_and_kept(tmp_path: Path) -> None:
    source = write_dense(tmp_path / "dense")
    write_dense(tmp_path / "out")
    before = fingerprint(tmp_path)
    with pytest.raises(ExportError, match="something is there already"):
        expand_checkpoint(source, tmp_path / "out", num_streams=2)
    assert fingerprint(tmp_path) == before


@pytest.mark.parametrize("place", ["dense", "dense/inside", "dense/../dense", "link/inside"])
def test_the_source_is_never_written_to(tmp_path: Path, place: str) -> None:
    source = write_dense(tmp_path / "dense")
    (tmp_path / "link").symlink_to("dense")
    before = fingerprint(source)
    with pytest.raises(ExportError, match="the source"):
        expand_checkpoint(source, tmp_path / place, num_streams=2)
    assert fingerprint(source) == before


def test_an_output_that_appears_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_dense(tmp_path / "dense")
    place_files = folder_module._place_files

    def place_slowly(*args: Any, **kwargs: Any) -> Any:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "precious").write_text("1")
        return place_files(*args, **kwargs)

    monkeypatch.setattr(folder_module, "_place_files", place_slowly)
    with pytest.raises(ExportError, match="something is there already"):
        expand_checkpoint(source, tmp_path / "out", num_streams=2)
    assert os.listdir(tmp_path / "out") == ["precious"]
    expect_nothing(tmp_path, {"dense", "out"})


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (OSError(errno.ENOSPC, "full"), ExportError, r"write a checkpoint to[\s\S]*disk is full"),
        (CheckpointError("a", "shorter", "c"), CheckpointError, "shorter"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
    ids=["full disk", "source cut", "Ctrl-C"],
)
def test_a_failure_in_the_middle_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    raised: type[BaseException],
    message: str | None,
) -> None:
    source = write_dense(tmp_path / "dense")
    before = fingerprint(source)

    def fail(self: LazyTensor, chunk_bytes: int = 0) -> Any:
        yield b"some"
        raise error

    monkeypatch.setattr(LazyTensor, "chunks", fail)
    with pytest.raises(raised, match=message):
        expand_checkpoint(source, tmp_path / "out", num_streams=2)
    expect_nothing(tmp_path, {"dense"})
    assert fingerprint(source) == before


def test_a_result_that_cannot_be_read_back_gets_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_dense(tmp_path / "dense")
    monkeypatch.setattr(LazyTensor, "chunks", lambda self, chunk_bytes: iter([b"too short"]))
    with pytest.raises(ExportError, match="could not be read back"):
        expand_checkpoint(source, tmp_path / "out", num_streams=2)
    expect_nothing(tmp_path, {"dense"})


def test_an_output_in_a_file_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="file is a file"):
        expand_checkpoint(tmp_path / "not looked at", tmp_path / "file" / "out", num_streams=2)


def test_a_bundle_is_no_source(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError) as caught:
        expand_checkpoint(tmp_path / "bundle", tmp_path / "out", num_streams=2)
    assert "it is a bundle" in caught.value.found and "exported from" in caught.value.fix
    expect_nothing(tmp_path, {"bundle"})
