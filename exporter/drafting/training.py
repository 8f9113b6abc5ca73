"""Fits the dynamics to the states of a text, step by step."""

import math
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.drafting.adam import Adam, choose_rate
from quatrain.exporter.drafting.batches import Batches
from quatrain.exporter.drafting.common_head import cut_head
from quatrain.exporter.drafting.dynamics import WEIGHT_NAMES, Weights, begin_weights
from quatrain.exporter.drafting.roll_out import take_loss
from quatrain.exporter.drafting.scales import Scales, measure_scales
from quatrain.exporter.drafting.settings import TrainingSettings
from quatrain.exporter.drafting.states import StateRuns
from quatrain.exporter.drafting.work_folder import DraftingFolder, SavedTraining
from quatrain.exporter.errors import ExportError
from quatrain.exporter.progress import Progress
from quatrain.exporter.steps import walk_steps

__all__ = ["train_dynamics"]

_SMOOTHING = 0.98  # of the loss that is told


def train_dynamics(
    runs: StateRuns,
    head: NDArray[np.generic],
    settings: TrainingSettings,
    work: DraftingFolder,
    progress: Progress,
) -> tuple[Weights, float]:
    """Learn the next states, going on from what `work` has; an interruption loses half a minute.

    Args:
        head: What makes logits of a state, [V, d] of any float type.

    Returns:
        The weights, for states and embeddings as they are, and the loss of the last steps
        (`take_loss`, of states whose mean square is 1).

    Raises:
        ExportError: `work` has an unfinished training with other settings; or this one diverged.
    """
    training = _Training(runs, head, settings, work)
    with progress.stage("train"):
        _tell_settings(runs, settings, progress)
        # Where numbers grow beyond float32 the loss says so, or what is stored.
        with np.errstate(all="ignore"):
            training.run(progress)
            weights = training.scales.fold(training.weights)
    return weights, training.loss


def _tell_settings(runs: StateRuns, settings: TrainingSettings, progress: Progress) -> None:
    seen = settings.steps * settings.batch
    progress.say(
        f"  {settings.steps} steps of {settings.batch} roll-outs of {settings.horizon}: each of"
        f" {runs.count(settings.horizon):,} positions {seen / runs.count(settings.horizon):.3g}"
        f" times; inner width {settings.inner}, learning rate {settings.learning_rate:g}"
    )


class _Training:
    def __init__(
        self,
        runs: StateRuns,
        head: NDArray[np.generic],
        settings: TrainingSettings,
        work: DraftingFolder,
    ) -> None:
        self._runs, self._settings, self._work = runs, settings, work
        self.scales: Scales = measure_scales(runs)
        self._head = cut_head(head, runs.token_ids) * self.scales.state
        self._batches = Batches(runs.count(settings.horizon), settings.batch, settings.seed)
        self.step = 0
        self.loss = math.nan
        rng = np.random.default_rng(settings.seed)
        self.weights = begin_weights(runs.states.shape[2], settings.inner, rng)
        self._adam = Adam(self.weights)
        saved = _find_saved(settings, work)
        if saved is not None:
            self._go_on(saved)

    def _go_on(self, saved: SavedTraining) -> None:
        arrays = dict(saved.arrays)
        loss = arrays.pop("loss", None)
        expected = self.weights | self._adam.moments
        if (
            loss is None
            or loss.shape
            or loss.dtype.kind != "f"
            or _describe_arrays(arrays) != _describe_arrays(expected)
        ):
            self._work.refuse_training()
        self.step, self.loss = saved.step, float(loss)
        self.weights = {name: arrays.pop(name) for name in WEIGHT_NAMES}
        self._adam = Adam(self.weights, arrays)

    def run(self, progress: Progress) -> None:
        """All steps that are left."""
        count = self._settings.steps
        for step in walk_steps(
            "steps", count, self.step, progress, describe=self._describe, save=self._save
        ):
            self._take_step(step)

    def _take_step(self, step: int) -> None:
        settings = self._settings
        states, embeddings = self._runs.take(self._batches.pick(step), settings.horizon)
        states /= self.scales.state
        embeddings /= self.scales.embedding
        loss, gradients = take_loss(self.weights, states, embeddings, self._head)
        if not math.isfinite(loss):
            raise ExportError(
                "fit a drafter",
                f"the loss is {loss} after {step} steps",
                f"choose a --learning-rate below {settings.learning_rate:g}",
            )
        rate = choose_rate(settings.learning_rate, step, settings.steps)
        self._adam.update(gradients, rate, step)
        before = loss if math.isnan(self.loss) else self.loss
        self.loss = _SMOOTHING * before + (1 - _SMOOTHING) * loss
        self.step = step + 1

    def _describe(self) -> str:
        return f", loss {self.loss:.4f}"

    def _save(self, step: int) -> None:
        loss: NDArray[np.float64] = np.array(self.loss)
        arrays = {**self.weights, **self._adam.moments, "loss": loss}
        self._work.save_training(asdict(self._settings), step, arrays)


def _describe_arrays(arrays: Weights) -> dict[str, object]:
    return {name: (array.shape, array.dtype) for name, array in arrays.items()}


def _find_saved(settings: TrainingSettings, work: DraftingFolder) -> SavedTraining | None:
    """What to go on from: with other settings nothing, once that training is finished."""
    saved = work.load_training()
    if saved is None:
        return None
    changes = settings.list_changes(saved.settings)
    if not changes:
        return saved
    steps = saved.settings.get("steps")
    if not isinstance(steps, int):
        work.refuse_training()
    if saved.step < steps:
        work.refuse(f"its training was begun with another {' and another '.join(changes)}")
    return None
