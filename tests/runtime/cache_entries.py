"""What a session cache holds."""

import os
from pathlib import Path


def list_entries(cache: Path) -> list[Path]:
    """Finished or not; what is known of files is none."""
    return [path for path in cache.iterdir() if path.name != "hashes"]


def only_entry(cache: Path) -> Path:
    [entry] = list_entries(cache)
    return entry


def flip_bit(path: Path, place: int) -> None:
    """Change a file as nobody sees by its size or its time."""
    status = path.stat()
    with path.open("rb+") as file:
        file.seek(place)
        [byte] = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
