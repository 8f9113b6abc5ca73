"""The folder that the fit of a drafter can be resumed from: the states, and the training so far."""

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.resumable_folder import ResumableFolder

__all__ = ["DraftingFolder", "SavedTraining"]

_STATES = "states.f16"
_TRAINING = "training.npz"
_SETTINGS = "settings"
_STEP = "step"

_Float16 = np.dtype("<f2")


class SavedTraining(NamedTuple):
    """Arrays after `step` steps, and the settings they were trained with."""

    settings: dict[str, Any]
    step: int
    arrays: dict[str, NDArray[np.float32]]


class DraftingFolder(ResumableFolder):
    """The states of a backbone on the windows of a text, and a training that learns from them.

    The settings of the training are not part of the folder's identity: once it is finished,
    another one can go on from the same states.
    """

    def append_states(self, states: NDArray[np.float32]) -> None:
        """Add those of one window, [W, d], behind the others."""
        with (self.path / _STATES).open("ab") as file:
            file.write(states.astype(_Float16).tobytes())

    def count_states(self, window: int, hidden_size: int) -> int:
        """The number of whole windows there are; part of one, left by an interruption, is cut."""
        path = self.path / _STATES
        if not path.exists():
            return 0
        num_bytes = window * hidden_size * _Float16.itemsize
        count = path.stat().st_size // num_bytes
        os.truncate(path, count * num_bytes)
        return count

    def map_states(self, window: int, hidden_size: int) -> NDArray[np.float16]:
        """All of them, float16 [N, W, d], mapped into memory."""
        shape = (self.count_states(window, hidden_size), window, hidden_size)
        return np.memmap(self.path / _STATES, _Float16, "r", shape=shape)

    def load_training(self) -> SavedTraining | None:
        """What was saved last; None where nothing was."""
        stored = self.load_arrays(_TRAINING)
        if stored is None:
            return None
        if not {_SETTINGS, _STEP} <= stored.keys():
            self.refuse(f"{_TRAINING} holds something else")
        settings = json.loads(str(stored.pop(_SETTINGS)))
        step = int(stored.pop(_STEP))
        return SavedTraining(settings, step, stored)

    def save_training(
        self, settings: Mapping[str, object], step: int, arrays: Mapping[str, NDArray[np.float32]]
    ) -> None:
        """Replace it."""
        facts: dict[str, Any] = {_SETTINGS: json.dumps(dict(settings)), _STEP: step, **arrays}
        self.save_arrays(_TRAINING, facts)
