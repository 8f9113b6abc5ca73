"""Writes files of torch.save, and spoils them."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from quatrain.exporter.checkpoint.torch_archive import read_torch_tensors
from quatrain.exporter.errors import CheckpointError


def save(path: Path, **tensors: Any) -> Path:
    torch.save({"model": tensors, "optimizer": {}}, path)
    return path


def refusal(path: Path, section: str = "model") -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        read_torch_tensors(path, section)
    assert str(path) in caught.value.asked
    return caught.value


def rewrite(path: Path, change: Callable[[str, bytes], bytes | None], **options: Any) -> Path:
    """Write the zip again with other entries; None drops one."""
    with zipfile.ZipFile(path) as old:
        entries = {info.filename: old.read(info) for info in old.infolist()}
    with zipfile.ZipFile(path, "w", **options) as new:
        for name, data in entries.items():
            changed = change(name, data)
            if changed is not None:
                new.writestr(name, changed)
    return path


def with_pickle(path: Path, data: bytes) -> Path:
    """A torch file with another pickle in it."""
    save(path, a=torch.ones(3))
    return rewrite(path, lambda name, old: data if name.endswith("data.pkl") else old)
