"""Which of the two kinds of folder that quatrain reads is it?"""

import os
from pathlib import Path
from typing import Literal

import msgspec

__all__ = ["MANIFEST_NAME", "FolderKind", "find_kind"]

FolderKind = Literal["bundle", "checkpoint"]

MANIFEST_NAME = "manifest.json"
# NextLat's has a file of its own. Some published checkpoints have a manifest.json, too.
_CHECKPOINT = ("config.json", "materialized_config.yaml")
_OURS = {"family", "graphs", "files"}


def find_kind(folder: Path) -> FolderKind | None:
    """What `folder` is, by the names of its files; None where they are of neither kind.

    With files of both, a bundle is one whose manifest is ours.
    """
    is_checkpoint = any(os.path.exists(folder / name) for name in _CHECKPOINT)
    manifest = folder / MANIFEST_NAME
    if os.path.exists(manifest) and not (is_checkpoint and not _is_ours(manifest)):
        return "bundle"
    return "checkpoint" if is_checkpoint else None


def _is_ours(manifest: Path) -> bool:
    try:
        content = msgspec.json.decode(manifest.read_bytes())
    except (OSError, msgspec.DecodeError):
        return False
    return isinstance(content, dict) and content.keys() >= _OURS
