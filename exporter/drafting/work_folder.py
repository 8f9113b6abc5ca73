"""The folder that the fit of a drafter can be resumed from: the states, and the training so far."""

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.resumable_folder import ResumableFolder

__all__ = ["DraftingFolder", "SavedTraining"]

_STATES = "states.f16"
_TRAINING = "training.npz"
_WRITTEN = "written.i64"
_SETTINGS = "settings"
_STEP = "step"

_Float16 = np.dtype("<f2")
_Int64 = np.dtype("<i8")


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

    def append_written(self, token_ids: NDArray[np.int64]) -> None:
        """Add what the model wrote behind some prompts, [B, tokens], behind what there is."""
        with (self.path / _WRITTEN).open("ab") as file:
            file.write(token_ids.astype(_Int64).tobytes())

    def count_written(self, tokens: int, batch: int, most: int) -> int:
        """Of how many prompts there is what was written: all `most`, or those of whole batches. A
        part of one, left by an interruption, is cut."""
        path = self.path / _WRITTEN
        if not path.exists():
            return 0
        num_bytes = tokens * _Int64.itemsize
        count = min(path.stat().st_size // num_bytes, most)
        if count < most:
            count -= count % batch
        os.truncate(path, count * num_bytes)
        return count

    def load_written(self, count: int, tokens: int, vocab_size: int) -> NDArray[np.int64]:
        """All of it, int64 [count, tokens]; an `ExportError` where it is no tokens."""
        stored = np.fromfile(self.path / _WRITTEN, _Int64)
        if not 0 <= int(stored.min()) <= int(stored.max()) < vocab_size:
            self.refuse(f"{_WRITTEN} is damaged (ids beyond the vocabulary)")
        return stored.astype(np.int64).reshape(count, tokens)

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
        try:
            settings = json.loads(str(stored.pop(_SETTINGS)))
            step = int(stored.pop(_STEP))
        except (KeyError, ValueError, TypeError):
            self.refuse_training()
        if not isinstance(settings, dict) or step < 0:
            self.refuse_training()
        return SavedTraining(settings, step, stored)

    def refuse_training(self) -> NoReturn:
        """Raise `ExportError`: what was saved last is of no use."""
        self.refuse(f"{_TRAINING} holds something else")

    def save_training(
        self, settings: Mapping[str, object], step: int, arrays: Mapping[str, NDArray[np.float32]]
    ) -> None:
        """Replace it."""
        facts: dict[str, Any] = {_SETTINGS: json.dumps(dict(settings)), _STEP: step, **arrays}
        self.save_arrays(_TRAINING, facts)
