"""A predictor for every layer, fitted to the gate projections of a frozen backbone."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.calibration_text import CalibrationText
from quatrain.exporter.checkpoint import Checkpoint, LazyTensor
from quatrain.exporter.checkpoint.lazy_tensor import SUPPORTED_DTYPES
from quatrain.exporter.derivation import ArrayTensor
from quatrain.exporter.errors import ExportError
from quatrain.exporter.probe import probe_bundle, run_probe
from quatrain.exporter.progress import Progress
from quatrain.exporter.sparsification.calibration import sum_moments
from quatrain.exporter.sparsification.low_rank import fit_predictor
from quatrain.exporter.sparsification.quality import LayerQuality, QualityMeter
from quatrain.exporter.sparsification.work_folder import WorkFolder
from quatrain.exporter.spec import BankTopK
from quatrain.exporter.steps import walk_steps
from quatrain.exporter.temporary_bundle import temporary_bundle
from quatrain.runtime.session import Model

__all__ = ["fit_predictors"]

_LARGE_BYTES = 2_000_000_000

Tensors = dict[str, LazyTensor]


def fit_predictors(
    source: Checkpoint,
    banks: BankTopK,
    text: CalibrationText,
    work: WorkFolder,
    progress: Progress,
) -> tuple[Tensors, list[LayerQuality]]:
    """The tensors of all predictors by name, in files of `work`, and how well each one chooses.

    The backbone runs on the CPU in float32, all of it in memory; the sums take 4 * L * d^2 bytes
    more (2.4 GB for 36 layers of 4096).

    Raises:
        ExportError: The backbone computes numbers that are not finite.
    """
    _tell_memory(source, progress)
    tensors: Tensors = {}
    with (
        temporary_bundle(source, text.fitted.shape[1], work.path, progress) as bundle,
        probe_bundle(bundle, logits=False) as model,
    ):
        with progress.stage("calibrate"):
            sums = sum_moments(model, text.fitted, work, progress)
        _check_finite(sums, source)
        with progress.stage("fit predictors"):
            for layer in walk_steps("layers", len(sums), 0, progress):
                tensors |= _fit_layer(source, layer, sums[layer], banks, work)
        del sums
        with progress.stage("measure on held-out text"):
            qualities = _measure(model, source, banks, tensors, text.held_out, progress)
    return tensors, qualities


def _check_finite(numbers: NDArray[np.float32], source: Checkpoint) -> None:
    if not np.isfinite(numbers).all():
        raise ExportError(
            f"fit predictors to {source.folder}",
            "it has weights, or computes numbers, that are not finite",
            "fetch the checkpoint again, or go back to one saved before training diverged",
        )


def _tell_memory(source: Checkpoint, progress: Progress) -> None:
    backbone = source.spec.backbone
    num_bytes = 4 * backbone.num_hidden_layers * backbone.hidden_size**2
    if num_bytes > _LARGE_BYTES:
        progress.say(
            f"note: calibration keeps {num_bytes / 1e9:.1f} GB of sums in memory and in its work"
            " folder, beside the weights in float32"
        )


def _fit_layer(
    source: Checkpoint, layer: int, moment: NDArray[np.float32], banks: BankTopK, work: WorkFolder
) -> Tensors:
    assert banks.predictor_rank is not None
    found = work.find_predictor(layer, banks.predictor_rank)
    if found is None:
        gate = _read_weight(source.tensors, f"{_prefix(layer)}.gate_proj.weight")
        _check_finite(gate, source)  # the sums depend on those of the layers before only
        factors = fit_predictor(gate, moment, banks.predictor_rank)
        stored = {name: key for key, name in SUPPORTED_DTYPES.items()}[source.stored_dtype]
        work.save_predictor(
            layer,
            banks.predictor_rank,
            {
                name: ArrayTensor(factor, stored)
                for name, factor in zip(_predictor_names(layer), factors, strict=True)
            },
        )
        found = work.find_predictor(layer, banks.predictor_rank)
    assert found is not None
    return found


def _measure(
    model: Model,
    source: Checkpoint,
    banks: BankTopK,
    predictors: Tensors,
    windows: NDArray[np.int64],
    progress: Progress,
) -> list[LayerQuality]:
    """Of the predictors as they are stored; a layer's weights are widened for one window at a
    time."""
    num_layers = source.spec.backbone.num_hidden_layers
    meters = [QualityMeter(layer, banks.bank_size, banks.top_k) for layer in range(num_layers)]
    for index in walk_steps("windows", len(windows), 0, progress):
        for rows in run_probe(model, windows[index : index + 1]):
            for layer, inputs in rows.inputs.items():
                [x] = inputs
                u, v = (
                    x @ _read_weight(source.tensors, f"{_prefix(layer)}.{name}.weight").T
                    for name in ("gate_proj", "up_proj")
                )
                first, second = (_read_weight(predictors, n) for n in _predictor_names(layer))
                meters[layer].add(u, v, x @ first.T @ second.T)
    return [meter.result() for meter in meters]


def _read_weight(tensors: Mapping[str, LazyTensor], name: str) -> NDArray[np.float32]:
    return tensors[name].read().astype(np.float32)


def _prefix(layer: int) -> str:
    return f"model.layers.{layer}.mlp"


def _predictor_names(layer: int) -> list[str]:
    return [f"{_prefix(layer)}.predictor.{k}.weight" for k in (0, 1)]
