"""The states of a frozen backbone on a text: what its head reads, at every position."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.checkpoint import Checkpoint
from quatrain.exporter.drafting.work_folder import DraftingFolder
from quatrain.exporter.errors import ExportError
from quatrain.exporter.probe import HEAD_INPUT, probe_bundle, run_probe
from quatrain.exporter.progress import Progress
from quatrain.exporter.steps import walk_steps
from quatrain.exporter.temporary_bundle import temporary_bundle
from quatrain.runtime.session import Model

__all__ = ["StateRuns", "collect_states"]


@dataclass(frozen=True, slots=True)
class StateRuns:
    """Consecutive states of a text, and the embeddings of its tokens.

    `states` is [N, W, d], `token_ids` int64 [N, W], `table` [V, d]; the arrays may be mapped files
    of any float type.
    """

    states: NDArray[np.floating]
    token_ids: NDArray[np.int64]
    table: NDArray[np.generic]

    def count(self, length: int) -> int:
        """How many runs of `length + 1` positions there are."""
        num_windows, window = self.token_ids.shape
        return int(num_windows) * max(int(window) - length, 0)

    def take(
        self, indices: NDArray[np.int64], length: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Runs by number, below `count(length)`: their states float32 [B, length + 1, d], and the
        embeddings float32 [B, length, d] of the tokens that led from each to the next."""
        windows, starts = np.divmod(indices, self.token_ids.shape[1] - length)
        positions = starts[:, None] + np.arange(length + 1)
        states = self.states[windows[:, None], positions].astype(np.float32)
        tokens = self.token_ids[windows[:, None], positions[:, 1:]]
        return states, self.table[tokens].astype(np.float32)


def collect_states(
    source: Checkpoint, windows: NDArray[np.int64], work: DraftingFolder, progress: Progress
) -> NDArray[np.float16]:
    """Run windows int64 [N, W] on the CPU in float32 and keep what the head reads, float16
    [N, W, d] in a file of `work`, going on from what is there.

    Raises:
        ExportError: The states are not finite, or too large for float16.
    """
    hidden_size = source.spec.backbone.hidden_size
    num_windows, window = windows.shape
    done = work.count_states(window, hidden_size)
    if done < num_windows:
        with (
            temporary_bundle(source, window, work.path, progress) as bundle,
            probe_bundle(bundle, (), logits=False, states=True) as model,
            progress.stage("run backbone"),
        ):
            for index in walk_steps("windows", num_windows, done, progress):
                states = _run_window(model, windows[index : index + 1])
                _check_range(source, states)
                work.append_states(states)
    return work.map_states(window, hidden_size)[:num_windows]


def _run_window(model: Model, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
    parts = [
        rows.outputs[HEAD_INPUT][0, : rows.num_tokens].astype(np.float32)
        for rows in run_probe(model, token_ids)
    ]
    return np.concatenate(parts)


def _check_range(source: Checkpoint, states: NDArray[np.float32]) -> None:
    # A comparison with a number that is not one is false.
    if not np.abs(states).max() <= np.finfo(np.float16).max:
        raise ExportError(
            f"fit a drafter to {source.folder}",
            "its states are not finite, or too large for float16",
            "fetch the checkpoint again, or go back to one saved before training diverged",
        )
