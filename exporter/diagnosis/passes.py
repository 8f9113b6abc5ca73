"""The passes over the text: one that counts channels, and those that measure predictions."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.diagnosis.bundle_weights import read_feed_forward_weights
from quatrain.exporter.diagnosis.channel_counter import ChannelCounter
from quatrain.exporter.diagnosis.dense_layer import edit_layer_dense
from quatrain.exporter.diagnosis.report import ChannelUse
from quatrain.exporter.diagnosis.setting import Setting
from quatrain.exporter.diagnosis.ticker import Ticker
from quatrain.exporter.diagnosis.windows import number_buckets
from quatrain.exporter.probe import probe_bundle, run_probe
from quatrain.runtime.decoding.scoring import score_chunks
from quatrain.runtime.perplexity import token_nlls

__all__ = ["count_channels", "measure_nlls"]


def count_channels(
    setting: Setting, layers: Sequence[int], threads: int | None, ticker: Ticker
) -> dict[int, ChannelUse]:
    """What these layers choose over the whole text."""
    ticker.begin("channels")
    banks = setting.banks
    weights = read_feed_forward_weights(setting.bundle, setting.manifest, list(layers))
    counters = {
        layer: ChannelCounter(
            weights[layer],
            bank_size=banks.bank_size,
            top_k=banks.top_k,
            activation=banks.predictor_activation or "none",
            num_buckets=len(setting.bucket_starts),
        )
        for layer in layers
    }
    with probe_bundle(setting.bundle, layers, logits=False, threads=threads) as model:
        for window in setting.windows:
            for call in run_probe(model, window.tokens[None]):
                positions = np.arange(call.start, call.start + call.num_tokens)
                buckets = number_buckets(setting.bucket_starts, positions)
                for layer, (x,) in call.inputs.items():
                    # A token has a row for each of its streams, or one.
                    counters[layer].add(x, np.repeat(buckets, len(x) // call.num_tokens))
                if max(layers) in call.inputs:  # the last segment of a model with exits
                    ticker.advance(call.num_tokens)
    return {layer: counter.summarize() for layer, counter in counters.items()}


def measure_nlls(
    setting: Setting, dense_layer: int | None, threads: int | None, ticker: Ticker
) -> NDArray[np.float64]:
    """The negative log-likelihood of every token [tokens], in nats, with one more layer dense."""
    ticker.begin("as it is" if dense_layer is None else f"layer {dense_layer} dense")
    edit = None
    if dense_layer is not None:
        edit = edit_layer_dense(dense_layer, setting.banks.bank_size)
    pieces = []
    with probe_bundle(setting.bundle, (), edit=edit, threads=threads) as model:
        for window in setting.windows:
            for columns, scores in score_chunks(model, window.tokens[None]):
                pieces.append(token_nlls(scores[0], window.targets[columns]))
                ticker.advance(len(pieces[-1]))
    return np.concatenate(pieces)
