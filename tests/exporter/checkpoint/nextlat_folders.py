"""Checkpoints in NextLat's own layout, whole or spoilt."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.exporter.checkpoint import nextlat_reference as reference
from tests.exporter.checkpoint.folders import GOLDEN, write_settings

GOLDEN_NEXTLAT = GOLDEN / "nextlat" / "checkpoint"

State = dict[str, Any]


def write(folder: Path, change: Callable[[State], object] | None = None, **settings: Any) -> Path:
    """A checkpoint whose state dict and settings may be changed."""
    folder.mkdir(exist_ok=True)
    state: State = dict(reference.make_weights())
    if change is not None:
        change(state)
    torch.save({"model": state, "training_steps": 3}, folder / "step-3.pt")
    write_settings(folder / "materialized_config.yaml", {**reference.SETTINGS, **settings})
    return folder


def rename(old: str, new: str) -> Callable[[State], object]:
    """Give every tensor whose name begins with `old` one that begins with `new`."""

    def change(state: State) -> None:
        for name in [name for name in state if name.startswith(old)]:
            state[new + name.removeprefix(old)] = state.pop(name)

    return change


def put(name: str, *shape: int) -> Callable[[State], object]:
    return lambda state: state.update({name: torch.zeros(shape)})


def drop(*names: str) -> Callable[[State], object]:
    return lambda state: [state.pop(name) for name in list(state) if name.startswith(names)]
