"""A folder that long work is resumed from."""

from pathlib import Path

import numpy as np
import pytest

from quatrain.exporter.errors import ExportError
from quatrain.exporter.resumable_folder import ResumableFolder

IDENTITY = {"text": "abc", "checkpoint": "def"}


def test_arrays_come_back(tmp_path: Path):
    folder = ResumableFolder(tmp_path / "work", IDENTITY)
    assert folder.load_arrays("sums.npz") is None
    folder.save_arrays("sums.npz", {"a": np.arange(3), "b": 7})
    stored = ResumableFolder(tmp_path / "work", IDENTITY).load_arrays("sums.npz")
    assert stored is not None
    assert stored["a"].tolist() == [0, 1, 2] and int(stored["b"]) == 7
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == [
        "calibration.json",
        "sums.npz",
    ]


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 cut", b"no archive at all"])
def test_a_damaged_file_is_said_to_be(tmp_path: Path, damage: bytes):
    folder = ResumableFolder(tmp_path / "work", IDENTITY)
    (tmp_path / "work" / "sums.npz").write_bytes(damage)
    with pytest.raises(ExportError, match=r"sums\.npz is damaged"):
        folder.load_arrays("sums.npz")


def test_a_truncated_file_is_damaged(tmp_path: Path):
    folder = ResumableFolder(tmp_path / "work", IDENTITY)
    folder.save_arrays("sums.npz", {"a": np.arange(1000)})
    path = tmp_path / "work" / "sums.npz"
    path.write_bytes(path.read_bytes()[:-700])
    with pytest.raises(ExportError, match=r"sums\.npz is damaged"):
        folder.load_arrays("sums.npz")


def test_a_place_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="keep work in"):
        ResumableFolder(tmp_path / "file" / "work", IDENTITY)
    with pytest.raises(ExportError, match="keep work in"):
        ResumableFolder(Path("/proc/no-such-place"), IDENTITY)


def test_other_work_is_refused(tmp_path: Path):
    ResumableFolder(tmp_path / "work", IDENTITY)
    with pytest.raises(ExportError, match="another text"):
        ResumableFolder(tmp_path / "work", IDENTITY | {"text": "other"})
