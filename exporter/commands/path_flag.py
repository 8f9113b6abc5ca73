"""Reads the paths that flags take."""

import argparse
from pathlib import Path

__all__ = ["read_path"]


def read_path(text: str) -> Path:
    """A path, never an empty one: of an unset shell variable `Path` would make the current folder,
    and something would be read or written there that nobody asked for."""
    if not text:
        raise argparse.ArgumentTypeError(
            "an empty path (of a variable that is not set?); name one, . for the current folder"
        )
    return Path(text)
