"""What a fit is asked to do, with its defaults settled and checked."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from quatrain.exporter.checkpoint import Checkpoint
from quatrain.exporter.errors import ExportError

__all__ = [
    "DEFAULT_RATE",
    "DEFAULT_TOKENS",
    "NUM_DRAFTS",
    "TrainingRequest",
    "TrainingSettings",
    "check_source",
    "settle_training",
]

DEFAULT_TOKENS = 131072
DEFAULT_RATE = 1e-3
NUM_DRAFTS = 4  # positions that the paper measures, and that are measured here

_INNER_PER_HIDDEN = 4  # the paper's multiplier m


@dataclass(frozen=True, slots=True)
class TrainingRequest:
    """The arguments of `fit_drafter` that say how; `inner` None where it is to choose."""

    window: int
    inner: int | None
    steps: int
    batch: int
    horizon: int
    learning_rate: float
    seed: int


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """All that the outcome of a training depends on, beside its text and its backbone.

    `horizon` is how many steps each roll-out has, `batch` how many roll-outs a step learns from,
    `learning_rate` the highest one.
    """

    inner: int
    steps: int
    batch: int
    horizon: int
    learning_rate: float
    seed: int

    def list_changes(self, other: Mapping[str, object]) -> list[str]:
        """The flags that another training was begun with other values of."""
        return [
            f"--{name.replace('_', '-')} ({other.get(name)})"
            for name, value in asdict(self).items()
            if other.get(name) != value
        ]


def check_source(source: Checkpoint) -> None:
    """Raise `ExportError` for a checkpoint whose states no drafter can be fitted to."""
    spec = source.spec
    axes = {
        "it has low-level dynamics already": (spec.drafter, "the checkpoint it was made from"),
        "an N-vium checkpoint: a draft is verified at full depth, which is what exits avoid": (
            spec.exits,
            "a checkpoint without exits",
        ),
        "a Hidden Decoding checkpoint: a token has several states, and dynamics know one": (
            spec.streams,
            "a checkpoint without streams",
        ),
    }
    for found, (axis, instead) in axes.items():
        if axis is not None:
            raise ExportError(f"fit a drafter to {source.folder}", found, f"give {instead}")


def settle_training(source: Checkpoint, request: TrainingRequest) -> TrainingSettings:
    """The settings with their defaults.

    Raises:
        ExportError: One is out of its range.
    """
    inner = request.inner
    if inner is None:
        inner = _INNER_PER_HIDDEN * source.spec.backbone.hidden_size
    counts = {
        "--inner": inner,
        "--steps": request.steps,
        "--batch": request.batch,
        "--horizon": request.horizon,
    }
    for flag, count in counts.items():
        if count < 1:
            raise ExportError(f"fit with {flag} {count}", "it counts something", "give at least 1")
    if not 0 < request.learning_rate < math.inf:
        raise ExportError(
            f"fit with --learning-rate {request.learning_rate}",
            "it must be above 0 and finite",
            f"leave it out for {DEFAULT_RATE}",
        )
    if request.seed < 0:
        raise ExportError(f"fit with --seed {request.seed}", "it is negative", "give 0 or more")
    _check_window(request)
    return TrainingSettings(
        inner,
        request.steps,
        request.batch,
        request.horizon,
        request.learning_rate,
        request.seed,
    )


def _check_window(request: TrainingRequest) -> None:
    least = max(request.horizon, NUM_DRAFTS) + 1
    if request.window < least:
        raise ExportError(
            f"windows of {request.window} tokens (--window)",
            f"a roll-out of {request.horizon} steps (--horizon) and the measurement of {NUM_DRAFTS}"
            f" drafts need {least} in a row",
            f"choose a window of {least} or more",
        )
