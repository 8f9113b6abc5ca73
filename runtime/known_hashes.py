"""Hashes of large files, remembered for as long as the file system says that they are the same."""

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path

from quatrain.runtime.bundle_check import hash_file

__all__ = ["hash_known_file", "remember_hash"]

# A file written twice within one tick of the file system's clock looks the same afterwards (2 s is
# that of FAT), so what has just been changed is not remembered yet.
_TICK_SECONDS = 2.0
_DIGITS = 64


def hash_known_file(path: Path, folder: Path) -> str:
    """SHA-256 of a file, as hexadecimal; read once, and then known from `folder`.

    It is known by device, inode, size and both times. That of the last change of the inode (on
    POSIX) is nobody's to set, unlike that of the content, which archives give to many files.
    `OSError` where the file cannot be read; a folder that cannot be written costs only time.
    """
    status = path.stat()
    note = _place_note(status, folder)
    with suppress(OSError, ValueError):
        known = note.read_text(encoding="ascii")
        if len(known) == _DIGITS:
            return known
    found = hash_file(path)
    changed = max(status.st_ctime, status.st_mtime)
    if changed < time.time() - _TICK_SECONDS and note == _place_note(path.stat(), folder):
        _write_note(note, found)
    return found


def remember_hash(path: Path, digest: str, folder: Path) -> None:
    """Know the hash of a file that nobody else has been able to write to."""
    _write_note(_place_note(path.stat(), folder), digest)


def _place_note(status: os.stat_result, folder: Path) -> Path:
    facts = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return folder / hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _write_note(note: Path, digest: str) -> None:
    """As well as can be: who finds half of one reads the file again."""
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(digest, encoding="ascii")
