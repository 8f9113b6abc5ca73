"""Finds where a sparse feed-forward network fails, and the layer whose channels repair it."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.diagnosis.passes import count_channels, measure_nlls
from quatrain.exporter.diagnosis.report import (
    ActivationReport,
    ChannelUse,
    LayerReport,
    PositionBucket,
    Repair,
    Suggestion,
)
from quatrain.exporter.diagnosis.setting import Setting, open_setting
from quatrain.exporter.diagnosis.ticker import Ticker
from quatrain.exporter.expansion.layer_list import format_layers
from quatrain.exporter.progress import Progress
from quatrain.runtime.requests import Prompt

__all__ = ["DEFAULT_TOKENS", "diagnose_activations"]

DEFAULT_TOKENS = 4096
_MIN_ERRORS = 3.0  # the best of many layers gains fewer standard errors by chance

Array = NDArray[np.float64]


def diagnose_activations(
    bundle: str | Path,
    text: Prompt,
    *,
    tokens: int = DEFAULT_TOKENS,
    check_weights: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> ActivationReport:
    """Run a bank-top-k bundle over a text on the CPU: what is chosen, and what a dense layer gains.

    The text is predicted in windows as long as the bundle allows; by position in them, a cliff in
    the perplexity shows. That takes one pass over the text to count channels, one as the bundle is,
    and one for each sparse layer. The bundle itself is left as it is.

    Args:
        text: Text, or token ids.
        tokens: Of the text no more are used. Positions beyond that are not seen: a long bundle
            takes a long text.
        check_weights: Compare every file with its recorded hash first, the largest ones, too;
            linked weights exported without one are held to size, time and header.
        threads: Of ONNX Runtime.
        progress: Told of the passes.

    Raises:
        BundleError: It is no bundle, or not as it was written.
        ExportError: It is a checkpoint, or has no banks.
        RequestError: The text is too short, or nothing can tokenize it.
    """
    setting = open_setting(Path(bundle), text, tokens, check_weights=check_weights)
    dense = setting.banks.dense_fallback_layers
    depth = len(setting.manifest.cache.layers)
    sparse = [layer for layer in range(depth) if layer not in dense]
    num_passes = 1 + (1 + len(sparse) if sparse else 0)
    ticker = Ticker(progress or Progress(), num_passes, setting.num_tokens)
    uses = count_channels(setting, sparse, threads, ticker) if sparse else {}
    before = measure_nlls(setting, None, threads, ticker)
    after = {layer: measure_nlls(setting, layer, threads, ticker) for layer in sparse}
    return _make_report(setting, depth, uses, before, after)


def _make_report(
    setting: Setting,
    depth: int,
    uses: Mapping[int, ChannelUse],
    before: Array,
    after: Mapping[int, Array],
) -> ActivationReport:
    banks = setting.banks
    repairs = {layer: _measure_repair(setting, before, nlls) for layer, nlls in after.items()}
    gaining = [layer for layer, repair in repairs.items() if repair.gain > 0]
    best = max(gaining, key=lambda layer: repairs[layer].gain, default=None)
    buckets = _describe_buckets(setting, before)
    layers = [
        LayerReport(layer, layer not in repairs, uses.get(layer), repairs.get(layer))
        for layer in range(depth)
    ]
    return ActivationReport(
        bundle=str(setting.bundle),
        family=setting.manifest.family,
        bank_size=banks.bank_size,
        top_k=banks.top_k,
        predictor_rank=banks.predictor_rank,
        gate_mode=banks.gate_mode,
        chance=banks.top_k / banks.bank_size,
        tokens=setting.num_tokens,
        windows=len(setting.windows),
        window=setting.manifest.limits.max_seq_len,
        perplexity=float(np.exp(before.mean())),
        buckets=buckets,
        layers=layers,
        best_layer=best,
        suggestion=None if best is None else _suggest(setting, layers[best], buckets),
    )


def _describe_buckets(setting: Setting, nlls: Array) -> list[PositionBucket]:
    stops = [*setting.bucket_starts[1:], setting.last_position + 1]
    counts = np.bincount(setting.bucket_of).tolist()
    perplexities = _average_by_bucket(setting, nlls)
    return [
        PositionBucket(start, stop - 1, count, perplexity)
        for start, stop, count, perplexity in zip(
            setting.bucket_starts, stops, counts, perplexities, strict=True
        )
    ]


def _measure_repair(setting: Setting, before: Array, after: Array) -> Repair:
    is_last = setting.bucket_of == setting.bucket_of.max()
    gains = (before - after)[is_last]
    error = float(gains.std(ddof=1) / math.sqrt(len(gains))) if len(gains) > 1 else None
    return Repair(
        perplexity=float(np.exp(after.mean())),
        bucket_perplexity=_average_by_bucket(setting, after),
        gain=float(gains.mean()),
        gain_error=error,
    )


def _average_by_bucket(setting: Setting, nlls: Array) -> list[float]:
    sums, counts = np.bincount(setting.bucket_of, nlls), np.bincount(setting.bucket_of)
    return [float(perplexity) for perplexity in np.exp(sums / counts)]


def _suggest(
    setting: Setting, best: LayerReport, buckets: list[PositionBucket]
) -> Suggestion | None:
    repair = best.repair
    if repair is None or repair.gain_error is None:
        return None
    if repair.gain < _MIN_ERRORS * repair.gain_error:
        return None
    dense = {*setting.banks.dense_fallback_layers, best.layer}
    depth = len(setting.manifest.cache.layers)
    return Suggestion(
        layer=best.layer,
        dense_fallback=format_layers(tuple(layer in dense for layer in range(depth))),
        perplexity_before=buckets[-1].perplexity,
        perplexity_after=repair.bucket_perplexity[-1],
    )
