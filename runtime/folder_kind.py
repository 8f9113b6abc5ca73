"""Which of the two kinds of folder that quatrain reads is it?"""

import os
from pathlib import Path
from typing import Literal

__all__ = ["MANIFEST_NAME", "FolderKind", "find_kind"]

FolderKind = Literal["bundle", "checkpoint"]

MANIFEST_NAME = "manifest.json"
# NextLat's has a file of its own. Some published checkpoints have a manifest.json, too.
_CHECKPOINT = ("config.json", "materialized_config.yaml")


def find_kind(folder: Path) -> FolderKind | None:
    """What `folder` is, by the names of its files; None where they are of neither kind."""
    if any(os.path.exists(folder / name) for name in _CHECKPOINT):
        return "checkpoint"
    return "bundle" if os.path.exists(folder / MANIFEST_NAME) else None
