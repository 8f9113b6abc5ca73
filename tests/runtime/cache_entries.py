"""What a session cache holds."""

from pathlib import Path


def only_entry(cache: Path) -> Path:
    [entry] = cache.iterdir()
    return entry
