"""Files are read once, and again whenever they may be others."""

import hashlib
import os
import time
from pathlib import Path

import pytest
from tests.runtime.cache_entries import flip_bit

from quatrain.runtime import known_hashes
from quatrain.runtime.known_hashes import hash_known_file, remember_hash


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Grows by a path whenever a file is read; a tick of the clock takes no time."""
    read: list[Path] = []
    monkeypatch.setattr(known_hashes, "hash_file", lambda path: read.append(path) or hash_(path))
    monkeypatch.setattr(known_hashes, "_TICK_SECONDS", 0.0)
    return read


def hash_(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    time.sleep(0.02)  # a tick of most file systems
    return path


def test_a_file_is_read_once(tmp_path: Path, reads: list[Path]) -> None:
    file = write(tmp_path / "file", b"content")
    assert [hash_known_file(file, tmp_path / "known") for _ in range(3)] == [hash_(file)] * 3
    os.rename(file, tmp_path / "renamed")
    assert len(reads) == 1


def test_a_file_changed_behind_its_size_and_time_is_read_again(
    tmp_path: Path, reads: list[Path]
) -> None:
    file = write(tmp_path / "file", b"content")
    before = hash_known_file(file, tmp_path / "known")
    flip_bit(file, 2)
    assert hash_known_file(file, tmp_path / "known") == hash_(file) != before


def test_two_files_of_one_size_and_time_are_two(tmp_path: Path, reads: list[Path]) -> None:
    files = [write(tmp_path / name, name.encode()) for name in ("one", "two")]
    for file in files:
        os.utime(file, (1, 1))
    time.sleep(0.02)
    for _ in range(2):
        assert [hash_known_file(file, tmp_path / "known") for file in files] == [
            hash_(file) for file in files
        ]
    assert reads == files


def test_what_was_written_just_now_is_not_known_yet_unless_by_its_writer(
    tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_hashes, "_TICK_SECONDS", 60.0)
    file, known = write(tmp_path / "file", b"content"), tmp_path / "known"
    for _ in range(2):
        hash_known_file(file, known)
    assert len(reads) == 2
    remember_hash(file, hash_(file), known)
    assert hash_known_file(file, known) == hash_(file)
    assert len(reads) == 2


def test_a_note_that_was_cut_short_or_cannot_be_written_costs_only_time(
    tmp_path: Path, reads: list[Path]
) -> None:
    file, known = write(tmp_path / "file", b"content"), tmp_path / "known"
    hash_known_file(file, known)
    [note] = known.iterdir()
    note.write_text("abc")
    assert hash_known_file(file, known) == hash_(file)
    assert hash_known_file(file, file / "below a file") == hash_(file)
    assert len(reads) == 3
