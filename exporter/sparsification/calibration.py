"""The second moment of what enters each feed-forward network, summed over a text."""

import time
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.probe import run_probe
from quatrain.exporter.progress import Progress
from quatrain.exporter.sparsification.work_folder import WorkFolder
from quatrain.runtime.session import Model

__all__ = ["sum_moments", "tell_steps"]

_SAVE_SECONDS = 30.0
# Writing the sums of a large model takes a while itself: at most a tenth of the time goes there.
_SAVE_SHARE = 10
_SAY_SECONDS = 10.0


def sum_moments(
    model: Model, windows: NDArray[np.int64], work: WorkFolder, progress: Progress
) -> NDArray[np.float32]:
    """Add up x x^T over all rows of the windows, float32 [L, d, d], going on from what `work` has.

    Whole windows are saved, every half minute and at the end: an interruption loses no more.
    """
    backbone = model.manifest.spec["backbone"]
    shape = (backbone["num_hidden_layers"], backbone["hidden_size"], backbone["hidden_size"])
    sums, done = work.load_moments() or (np.zeros(shape, np.float32), 0)
    if done:
        progress.say(f"  going on after {done} of {len(windows)} windows")
    saved_at, save_seconds = time.monotonic(), 0.0
    for index in tell_steps("windows", len(windows), done, progress):
        for rows in run_probe(model, windows[index : index + 1]):
            for layer, x in rows.inputs.items():
                sums[layer] += x[0].T @ x[0]
        waited = time.monotonic() - saved_at
        is_last = index + 1 == len(windows)
        if is_last or waited >= max(_SAVE_SECONDS, _SAVE_SHARE * save_seconds):
            start = time.monotonic()
            work.save_moments(sums, index + 1)
            saved_at = time.monotonic()
            save_seconds = saved_at - start
    return sums


def tell_steps(
    what: str,
    count: int,
    done: int,
    progress: Progress,
    describe: Callable[[], str] = str,
) -> Iterator[int]:
    """The steps from `done` on, telling now and then how long the rest will take, and whatever
    else `describe` says of them."""
    start = said_at = time.monotonic()
    for index in range(done, count):
        yield index
        now = time.monotonic()
        if now - said_at >= _SAY_SECONDS:
            left = (now - start) / (index + 1 - done) * (count - index - 1)
            progress.say(f"  {index + 1} of {count} {what}{describe()}, about {left:.0f} s left")
            said_at = now
