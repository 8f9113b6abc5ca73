"""Tables that stay in their files: what is looked up, and what is refused."""

import os
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.runtime.embedded_bundle import DTYPES, HIDDEN, NUM_ROWS, VOCAB, write_bundle

from quatrain.runtime.errors import BundleError
from quatrain.runtime.host_embeddings import MappedEmbeddings
from quatrain.runtime.manifest import HostEmbeddings, StoredTable, load_manifest


def open_tables(folder: Path) -> MappedEmbeddings:
    record = load_manifest(folder).embeddings
    assert record is not None
    return MappedEmbeddings(folder, record)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_those_of_the_tables_side_by_side(tmp_path: Path, dtype: str) -> None:
    expected = write_bundle(tmp_path / "b", dtype)
    embeddings = open_tables(tmp_path / "b")
    ids = np.random.default_rng(0).integers(0, VOCAB, (2, 5))
    ids[0, :2] = 0, VOCAB - 1
    out = np.full((2, 5, NUM_ROWS * HIDDEN), np.nan, np.float32)
    embeddings.look_up(ids, out)
    assert (out == expected[ids]).all()
    # Into part of a larger buffer, and nowhere else.
    buffer = np.zeros((4, 5, NUM_ROWS * HIDDEN), np.float32)
    embeddings.look_up(ids, buffer[1:3])
    assert (buffer[1:3] == out).all()
    assert not buffer[[0, 3]].any()


def test_bfloat16_is_exact_whatever_the_value(tmp_path: Path) -> None:
    words = np.arange(1 << 16, dtype=np.uint16).reshape(-1, 4)
    (tmp_path / "t").write_bytes(words.astype("<u2").tobytes())
    shape = [len(words), 4]
    table = StoredTable(path="t", offset=0, dtype="bfloat16", shape=shape)
    out = np.empty(words.shape, np.float32)
    MappedEmbeddings(tmp_path, HostEmbeddings(tables=[table])).look_up(np.arange(len(words)), out)
    expected = words.view(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(out, expected, equal_nan=True)
    assert np.array_equal(np.signbit(out), np.signbit(expected))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tables_are_mapped_and_not_read(tmp_path: Path, dtype: str) -> None:
    """A table of 4 GiB, all hole: neither opening it nor a lookup takes memory of its size."""
    rows, columns = (1 << 30) // np.dtype(DTYPES[dtype]).itemsize, 4
    path = tmp_path / "t"
    path.touch()
    os.truncate(path, rows * columns * np.dtype(DTYPES[dtype]).itemsize)
    table = StoredTable(path="t", offset=0, dtype=dtype, shape=[rows, columns])
    tracemalloc.start()
    embeddings = MappedEmbeddings(tmp_path, HostEmbeddings(tables=[table]))
    out = np.ones((3, columns), np.float32)
    embeddings.look_up(np.array([0, rows // 2, rows - 1]), out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not out.any()
    assert peak < 1 << 20
    assert embeddings._tables is not None
    assert all(isinstance(mapped.base, np.memmap) for mapped in embeddings._tables)
    assert not any(mapped.flags.writeable for mapped in embeddings._tables)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b")
    (tmp_path / "b" / "b.safetensors").unlink()
    with pytest.raises(BundleError, match=r"b\.safetensors\n.*cannot be mapped \(No such file"):
        open_tables(tmp_path / "b")


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b")
    (tmp_path / "b" / "a.safetensors").unlink()
    (tmp_path / "b" / "a.safetensors").mkdir()
    with pytest.raises(BundleError, match=r"a\.safetensors"):
        open_tables(tmp_path / "b")


def test_a_short_file_is_named(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b")
    path = tmp_path / "b" / "b.safetensors"
    size = path.stat().st_size
    os.truncate(path, size - 1)
    found = f"{size - 1} bytes, where the table ends at {size}"
    with pytest.raises(BundleError, match=found) as caught:
        open_tables(tmp_path / "b")
    assert "export" in caught.value.fix


def test_closed_tables_refuse(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b")
    embeddings = open_tables(tmp_path / "b")
    embeddings.close()
    embeddings.close()
    with pytest.raises(RuntimeError, match="closed"):
        embeddings.look_up(np.zeros(1, np.int64), np.zeros((1, VOCAB), np.float32))
