"""The folder of a session cache: entries are written whole, once, and leftovers cleared."""

import logging
import os
import stat
import time
from pathlib import Path

import pytest
from tests.runtime.cache_entries import only_entry

from quatrain.runtime.session_cache import SessionCache

KEY = {"made": "of nothing"}


def write_one(target: Path) -> None:
    target.write_bytes(b"one")


def test_who_comes_second_takes_what_is_there(tmp_path: Path) -> None:
    cache = SessionCache(tmp_path, "weights", "cpu")

    def write_late(target: Path) -> None:
        cache.store(KEY, write_one)
        target.write_bytes(b"two")

    assert cache.store(KEY, write_late).read_bytes() == b"one"
    assert cache.find(KEY) == only_entry(tmp_path) / "model.onnx"


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(target: Path) -> None:
        write_one(target)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SessionCache(tmp_path, "weights", "cpu").store(KEY, interrupt)
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_cleared_once_it_is_old(tmp_path: Path) -> None:
    new, old = (tmp_path / f".quatrain-unfinished-{name}" for name in ("new", "old"))
    for folder in (new, old):
        folder.mkdir()
        (folder / "model.data").write_bytes(b"half")
    for path in (old / "model.data", old):
        os.utime(path, (time.time() - 7200,) * 2)
    SessionCache(tmp_path, "weights", "cpu").clear_unfinished()
    assert new.exists() and not old.exists()


def test_whoever_may_read_files_made_here_may_read_an_entry(tmp_path: Path) -> None:
    ordinary = tmp_path / "ordinary"
    ordinary.mkdir()
    SessionCache(tmp_path / "cache", "weights", "cpu").store(KEY, write_one)
    entry = only_entry(tmp_path / "cache")
    assert stat.S_IMODE(entry.stat().st_mode) == stat.S_IMODE(ordinary.stat().st_mode)


def test_nothing_there_is_nothing_to_warn_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert SessionCache(tmp_path / "none", "weights", "cpu").find(KEY) is None
    assert not caplog.records
