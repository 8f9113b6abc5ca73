"""Work that is interrupted, and what it depends on."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.exporter.checkpoint.folders import write_source

from quatrain.exporter import steps


def save_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little time has passed."""
    monkeypatch.setattr(steps, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr(steps, "_SAVE_SHARE", 0.0)


def change_ground(change: str, source: Path, ids: Path) -> str:
    """Change what work was done on, the `text` or the `checkpoint`; says which of the two is to
    blame (for other changes, which are the caller's, the text)."""
    if change == "text":
        np.save(ids, np.load(ids)[::-1])
    if change == "checkpoint":
        shutil.rmtree(source)
        write_source(source, np.float16)
    return "checkpoint" if change == "checkpoint" else "text"
