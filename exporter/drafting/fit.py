"""Dense checkpoint in, checkpoint with low-level dynamics that draft for it out."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.bundle import WeightsMode
from quatrain.exporter.calibration_text import CalibrationText, read_windows
from quatrain.exporter.checkpoint import Checkpoint, open_checkpoint
from quatrain.exporter.checkpoint.json_file import read_json_object
from quatrain.exporter.checkpoint.lazy_tensor import NUMPY_DTYPES, SUPPORTED_DTYPES
from quatrain.exporter.checkpoint.names import EMBEDDINGS, LM_HEAD, lower_dynamics_name
from quatrain.exporter.derivation import (
    ArrayTensor,
    check_output,
    derive_config,
    write_checkpoint,
)
from quatrain.exporter.drafting.continuation import (
    Continuation,
    continue_prompts,
    settle_continuation,
)
from quatrain.exporter.drafting.dynamics import Weights
from quatrain.exporter.drafting.quality import DraftQuality, measure_quality
from quatrain.exporter.drafting.settings import (
    DEFAULT_RATE,
    DEFAULT_TOKENS,
    NUM_DRAFTS,
    TrainingRequest,
    TrainingSettings,
    check_source,
    settle_training,
)
from quatrain.exporter.drafting.states import StateRuns, collect_states
from quatrain.exporter.drafting.training import train_dynamics
from quatrain.exporter.drafting.work_folder import DraftingFolder
from quatrain.exporter.errors import ExportError
from quatrain.exporter.progress import Progress, Stage
from quatrain.exporter.resumable_folder import choose_work_folder
from quatrain.exporter.spec import Drafter
from quatrain.exporter.work_identity import identify_work

__all__ = ["DrafterReport", "fit_drafter"]

_KIND = "a checkpoint with a drafter"
_MARK = "HiLP"
_WINDOW = 4  # of the hierarchy that HiLP trains with, and that is not made here: the paper's


@dataclass(frozen=True, slots=True)
class DrafterReport:
    """What a fit wrote.

    `fitted_tokens` and `held_out_tokens` are what the dynamics were fitted to and measured on;
    with a `continuation` they are measured on what the model wrote alone;
    `loss` is what the training got down to (`take_loss`, of states with a mean square of 1);
    `quality` is of the dynamics as they are stored, on held-out text. `new_bytes` is the size of
    the new tensors, `weights` how the old files got there.
    """

    checkpoint: Path
    family: str
    drafter: Drafter
    training: TrainingSettings
    continuation: Continuation | None
    fitted_tokens: int
    held_out_tokens: int
    loss: float
    quality: DraftQuality
    new_parameters: int
    new_bytes: int
    weights: WeightsMode
    stages: list[Stage]
    warnings: list[str]


def fit_drafter(
    checkpoint: Path,
    output: Path,
    *,
    text: Path,
    tokens: int | None = None,
    window: int = 256,
    continue_tokens: int = 0,
    continue_temperature: float | None = None,
    inner: int | None = None,
    steps: int = 1000,
    batch: int = 512,
    horizon: int = 2,
    learning_rate: float = DEFAULT_RATE,
    seed: int = 0,
    weights: WeightsMode | None = None,
    work: Path | None = None,
    progress: Progress | None = None,
) -> DrafterReport:
    """Fit HiLP's low-level dynamics (arXiv 2608.05806, glu_cross) to a frozen backbone, on a CPU.

    The backbone stays as it is, and so does what it writes: the dynamics only guess it. It runs
    over a text once; they learn to guess each of its states from the one before and the token
    between, and what its head says of them, over roll-outs of `horizon` steps.

    A backbone that was not trained to be guessed, as HiLP's is, is harder to guess. What it writes
    itself is not like other text, so dynamics fitted to that are the better drafter
    (`continue_tokens`): with SmolLM2-135M, 59 thousand tokens of WikiText give 1.14 tokens a step
    on its own text behind 26 prompts of Spec-Bench, and 14 thousand that it wrote behind others
    give 1.41.

    Args:
        text: What to fit to: UTF-8 text, or token ids in a .npy file.
        tokens: How many of its tokens to use, the last tenth to measure on. Default: 131072, or
            all.
        window: Tokens that the backbone sees together.
        continue_tokens: How many tokens at the end of each window the model writes itself, behind
            the text's; 0 leaves the text as it is. `tokens` counts the text's alone. EOS ends
            nothing.
        continue_temperature: It takes the likeliest token at 0, the default, and draws above (with
            `continue_tokens`).
        inner: Width of the dynamics' SwiGLU. Default: 4 times that of the states.
        steps: Changes of the weights, each learnt from `batch` roll-outs.
        learning_rate: The highest: it rises in a line for a twentieth of the steps and falls along
            a cosine.
        weights: `link` or `copy` the weight files. Default: link where the file system allows.
        work: Folder to keep the states (2 * d bytes a token) and the training in, to go on from
            after an interruption, or to train otherwise on the same states. Default: `output` with
            `.partial` behind its name, removed at the end.

    Raises:
        QuatrainError: What was asked cannot be done; nothing is left at `output`.
    """
    progress = progress or Progress()
    output = Path(output)
    check_output(output, checkpoint, _KIND)
    place = choose_work_folder(work, output, checkpoint)
    request = TrainingRequest(window, inner, steps, batch, horizon, learning_rate, seed)
    with progress.stage("read checkpoint"):
        source = open_checkpoint(checkpoint)
        check_source(source)
        settings = settle_training(source, request)
        own = settle_continuation(source, window, continue_tokens, continue_temperature)
    given = window if own is None else window - own.tokens
    windows = read_windows(
        source, text, tokens, given, asked="fit a drafter", default_tokens=DEFAULT_TOKENS
    )
    folder = DraftingFolder(place, _identify(source, windows, own))
    fit = _Fit(source, settings, windows, own, folder, progress)
    report = _write(source, output, fit, weights, progress)
    if work is None:
        folder.remove()
    return report


def _identify(
    source: Checkpoint, windows: CalibrationText, own: Continuation | None
) -> dict[str, str]:
    """What the states depend on."""
    written = "" if own is None else f"{own.tokens} tokens at {own.temperature!r}"
    flags = "--continue-tokens or --continue-temperature"
    return {**identify_work(source, windows), flags: written}


class _Fit:
    """The new tensors, and what is known of them."""

    def __init__(
        self,
        source: Checkpoint,
        settings: TrainingSettings,
        text: CalibrationText,
        own: Continuation | None,
        work: DraftingFolder,
        progress: Progress,
    ) -> None:
        self.settings, self.own = settings, own
        ids = np.concatenate([text.fitted, text.held_out])
        if own is not None:
            ids = continue_prompts(source, ids, own, work, progress)
        states = collect_states(source, ids, work, progress)
        table, head = source.tensors[EMBEDDINGS].read(), _read_head(source)
        count = len(text.fitted)
        # What the model wrote, and the position that its first token was read at.
        last = ids.shape[1] if own is None else own.tokens + 1
        fitted = StateRuns(states[:count], ids[:count], table)
        held_out = StateRuns(states[count:, -last:], ids[count:, -last:], table)
        self.fitted_tokens, self.held_out_tokens = ids[:count].size, held_out.token_ids.size
        trained, self.loss = train_dynamics(fitted, head, settings, work, progress)
        self.tensors, stored = _store(source, trained)
        with progress.stage("measure on held-out text"):
            self.quality = measure_quality(stored, held_out, head, NUM_DRAFTS)
        if not math.isfinite(self.quality.relative_error):
            raise ExportError(
                f"fit a drafter to {source.folder}",
                "on held-out text its dynamics compute numbers that are not finite",
                f"choose a --learning-rate below {settings.learning_rate:g}",
            )


def _store(source: Checkpoint, weights: Weights) -> tuple[dict[str, ArrayTensor], Weights]:
    """The tensors in the checkpoint's own type, and the weights that they hold, in float32."""
    dtype = {name: key for key, name in SUPPORTED_DTYPES.items()}[source.stored_dtype]
    with np.errstate(over="ignore"):
        stored = {
            name: weight.astype(NUMPY_DTYPES[dtype]).astype(np.float32)
            for name, weight in weights.items()
        }
    if not all(np.isfinite(weight).all() for weight in stored.values()):
        raise ExportError(
            f"store the dynamics as {source.stored_dtype}, as {source.folder} is",
            "they have numbers that it does not hold",
            "choose a lower --learning-rate",
        )
    tensors = {
        lower_dynamics_name(name): ArrayTensor(weight, dtype) for name, weight in stored.items()
    }
    return tensors, stored


def _read_head(source: Checkpoint) -> NDArray[np.generic]:
    is_tied = source.spec.backbone.tie_word_embeddings
    return source.tensors[EMBEDDINGS if is_tied else LM_HEAD].read()


def _derive(source: Checkpoint) -> Mapping[str, object]:
    config = derive_config(read_json_object(source.folder / "config.json"), _MARK)
    config["hilp"] = {"window": _WINDOW, "drafter": "glu_cross", "residual": True}
    return config


def _write(
    source: Checkpoint,
    output: Path,
    fit: _Fit,
    weights: WeightsMode | None,
    progress: Progress,
) -> DrafterReport:
    written, mode = write_checkpoint(
        source,
        output,
        _derive(source),
        fit.tensors,
        weights,
        progress,
        kind=_KIND,
        parts="dynamics",
        label="hilp",
    )
    assert written.spec.drafter is not None
    warnings = _collect_warnings(fit)
    for warning in warnings:
        progress.say(f"warning: {warning}")
    return DrafterReport(
        checkpoint=output,
        family=written.spec.family,
        drafter=written.spec.drafter,
        training=fit.settings,
        continuation=fit.own,
        fitted_tokens=fit.fitted_tokens,
        held_out_tokens=fit.held_out_tokens,
        loss=fit.loss,
        quality=fit.quality,
        new_parameters=sum(tensor.array.size for tensor in fit.tensors.values()),
        new_bytes=sum(tensor.nbytes for tensor in fit.tensors.values()),
        weights=mode,
        stages=progress.stages,
        warnings=warnings,
    )


def _collect_warnings(fit: _Fit) -> list[str]:
    quality = fit.quality
    if quality.relative_error < quality.unchanged_error:
        return []
    return [
        f"on held-out text the dynamics guess no better (error {quality.relative_error:.3g}) than"
        f" that nothing changes ({quality.unchanged_error:.3g}): give more text (--text, --tokens)"
        ", more --steps or a lower --learning-rate"
    ]
