"""The second moment of what enters each feed-forward network, summed over a text."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.probe import run_probe
from quatrain.exporter.progress import Progress
from quatrain.exporter.sparsification.work_folder import WorkFolder
from quatrain.exporter.steps import walk_steps
from quatrain.runtime.session import Model

__all__ = ["sum_moments"]


def sum_moments(
    model: Model, windows: NDArray[np.int64], work: WorkFolder, progress: Progress
) -> NDArray[np.float32]:
    """Add up x x^T over all rows of the windows, float32 [L, d, d], going on from what `work` has.

    Whole windows are saved, every half minute and at the end.
    """
    backbone = model.manifest.spec["backbone"]
    shape = (backbone["num_hidden_layers"], backbone["hidden_size"], backbone["hidden_size"])
    sums, done = work.load_moments() or (np.zeros(shape, np.float32), 0)
    save = partial(work.save_moments, sums)
    for index in walk_steps("windows", len(windows), done, progress, save=save):
        for rows in run_probe(model, windows[index : index + 1]):
            for layer, x in rows.inputs.items():
                sums[layer] += x[0].T @ x[0]
    return sums
