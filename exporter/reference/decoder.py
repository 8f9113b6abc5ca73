"""A whole checkpoint run over whole sequences, in float32."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.checkpoint import Checkpoint
from quatrain.exporter.checkpoint.names import EMBEDDINGS, LM_HEAD
from quatrain.exporter.reference.attention import attend, lay_out_cache
from quatrain.exporter.reference.drafter import guess_next
from quatrain.exporter.reference.exits import ExitChain
from quatrain.exporter.reference.feed_forward import feed_forward
from quatrain.exporter.reference.functions import multiply, rms_norm
from quatrain.exporter.reference.rows import Rows, embed_rows, make_rows
from quatrain.exporter.reference.sequences import check_sequences
from quatrain.exporter.reference.taps import Recorder, Taps
from quatrain.exporter.reference.weights import Weights

__all__ = ["NUM_DRAFTS", "ReferenceDecoder"]

NUM_DRAFTS = 4

Floats = NDArray[np.float32]


class ReferenceDecoder:
    """The plain formulas of a decoder: every row of every layer, no cache, no shortcut."""

    def __init__(self, checkpoint: Checkpoint, *, keep_weights: bool = True) -> None:
        """`keep_weights` holds the weights in memory as float32 once they were needed; without it
        they are read again for every run, a matrix at a time."""
        self.checkpoint = checkpoint
        self.spec = checkpoint.spec
        self._weights = Weights(checkpoint.tensors, keep=keep_weights)

    def run(
        self,
        token_ids: NDArray[np.int64],
        lengths: Sequence[int] | None = None,
        *,
        keep: Callable[[str], bool] | None = None,
        channels: Mapping[int, NDArray[np.bool_]] | None = None,
    ) -> Taps:
        """Run sequences [B, L], each from position 0.

        With n streams there are R = L * n rows, row i*n + s of token i and stream s. Kept are

        - `embedding` [B, R, H]; `layers.{l}.attention` and `layers.{l}.output`, the residual stream
          after the attention and after the feed-forward network of a layer;
        - `layers.{l}.active_channels` bool [B, R, d_i], where a layer chooses among its channels;
        - `key_cache.{l}`, `value_cache.{l}` as a bundle's cache has them: [B, Hkv, R, D], or of a
          layer whose streams do not see each other [B, n * Hkv, L, D]. There are those of all
          streams, even where a bundle keeps the last one's only; they are the last Hkv heads;
        - `hidden` [B, L, H], the last stream's state after the final norm;
        - without exits `logits` [B, L, V];
        - with N exits, the final one the last: `exits.{k}.state` [B, L, H] after the exit's norm
          and before its adapter, `exits.{k}.router_logprobs` [B, L, 2] (go on, leave; not of the
          final exit), `exits.{k}.logprob` [B, L] of leaving there, `exits.{k}.logits` [B, L, V],
          and `mixture_logprobs` [B, L, V];
        - with a drafter, `draft.{j}.state` [B, L - j, H] and `draft.{j}.logits` [B, L - j, V] for
          j = 1 .. 4 < L: rolled out from the hidden state of t with the tokens t + 1 .. t + j.

        Args:
            lengths: Tokens of each sequence; what stands behind them may be anything, and what is
                computed there has no meaning. Default: all have L.
            keep: Which of these to keep, by name. Default: all.
            channels: Of a layer that chooses among its channels, those that take part instead, bool
                [B, R, d_i]: somebody else's choice, to follow from there on.

        Raises:
            RequestError: No sequences, or tokens that are not in the vocabulary.
        """
        token_ids = check_sequences(token_ids, lengths, self.spec.backbone.vocab_size)
        recorder = Recorder(keep)
        chain = self._make_exit_chain(recorder)
        x = self._run_layers(token_ids, recorder, chain, channels or {})
        last = self._normalize(x[:, self.spec.num_streams - 1 :: self.spec.num_streams], "norm")
        recorder.record("hidden", last)
        if chain is not None:
            chain.leave_last(last)
        else:
            self._predict("logits", last, recorder)
        self._roll_out(token_ids, last, recorder)
        return recorder.finish()

    def _make_exit_chain(self, recorder: Recorder) -> ExitChain | None:
        exits = self.spec.exits
        if exits is None:
            return None
        return ExitChain(self._weights, self.spec.backbone, exits, recorder)

    def _run_layers(
        self,
        token_ids: NDArray[np.int64],
        recorder: Recorder,
        chain: ExitChain | None,
        channels: Mapping[int, NDArray[np.bool_]],
    ) -> Floats:
        """The residual stream [B, R, H] behind the last layer."""
        num_streams = self.spec.num_streams
        rows = make_rows(token_ids, num_streams, self.checkpoint.document_token_id)
        x = embed_rows(self._weights, token_ids, num_streams)
        recorder.record("embedding", x)
        exit_depths = () if self.spec.exits is None else self.spec.exits.layers
        normed: dict[int, Floats] = {}
        for layer in range(self.spec.backbone.num_hidden_layers):
            normed[layer] = self._normalize(x, f"layers.{layer}.input_layernorm")
            x = x + self._attend(layer, normed, rows, recorder)
            recorder.record(f"layers.{layer}.attention", x)
            x = x + self._feed_forward(layer, x, recorder, channels.get(layer))
            recorder.record(f"layers.{layer}.output", x)
            if chain is not None and layer + 1 in exit_depths:
                chain.leave_early(exit_depths.index(layer + 1), x)
            self._forget(normed, layer)
        return x

    def _attend(
        self, layer: int, normed: dict[int, Floats], rows: Rows, recorder: Recorder
    ) -> Floats:
        source = self.spec.mirror_source(layer)
        read = normed[layer if source is None else source]
        attention = attend(self._weights, self.spec, layer, normed[layer], read, rows)
        apart = self.spec.num_streams if self.spec.is_intra_stream(layer) else 1
        for name, array in (("key", attention.keys), ("value", attention.values)):
            recorder.record(f"{name}_cache.{layer}", lay_out_cache(array, apart))
        return attention.output

    def _feed_forward(
        self, layer: int, x: Floats, recorder: Recorder, imposed: NDArray[np.bool_] | None
    ) -> Floats:
        normed = self._normalize(x, f"layers.{layer}.post_attention_layernorm")
        result = feed_forward(self._weights, self.spec, layer, normed, imposed)
        if result.active is not None:
            recorder.record(f"layers.{layer}.active_channels", result.active)
        return result.output

    def _forget(self, normed: dict[int, Floats], done: int) -> None:
        """Drop the inputs that no layer after `done` mirrors."""
        layers = range(done + 1, self.spec.backbone.num_hidden_layers)
        needed = {self.spec.mirror_source(layer) for layer in layers}
        for layer in normed.keys() - needed:
            del normed[layer]

    def _normalize(self, x: Floats, name: str) -> Floats:
        return rms_norm(x, self._weights[f"model.{name}.weight"], self.spec.backbone.rms_norm_eps)

    def _predict(self, name: str, states: Floats, recorder: Recorder) -> None:
        if recorder.wants(name):
            head = EMBEDDINGS if self.spec.backbone.tie_word_embeddings else LM_HEAD
            recorder.record(name, multiply(states, self._weights[head]))

    def _roll_out(self, token_ids: NDArray[np.int64], states: Floats, recorder: Recorder) -> None:
        drafter = self.spec.drafter
        if drafter is None:
            return
        for j in range(1, min(NUM_DRAFTS + 1, token_ids.shape[1])):
            embeddings = self._weights.look_up(EMBEDDINGS, token_ids[:, j:])
            states = guess_next(self._weights, drafter, states[:, :-1], embeddings)
            recorder.record(f"draft.{j}.state", states)
            self._predict(f"draft.{j}.logits", states, recorder)
