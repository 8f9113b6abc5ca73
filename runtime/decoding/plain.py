"""Plain decoding: every token through the whole decoder, one graph."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quatrain.runtime.decoding.decoder import StepOutput
from quatrain.runtime.decoding.history import TokenHistory
from quatrain.runtime.decoding.row_runner import RowRunner
from quatrain.runtime.decoding.row_source import choose_token_source
from quatrain.runtime.session import Arrays, Model

__all__ = ["PlainDecoder"]


class PlainDecoder:
    """A batch of sequences of a model without exits."""

    def __init__(self, model: Model, batch_size: int) -> None:
        manifest = model.manifest
        self.cache = model.allocate_cache(batch_size)
        self._graphs = model.bind(self.cache)
        graph = self._graphs[next(g.name for g in manifest.graphs if g.role == "decoder")]
        self._history = TokenHistory(manifest, batch_size)
        source = choose_token_source(model, self._history)
        self._runner = RowRunner(
            graph, self.cache, source, model.prefill_chunk, self._history.documents
        )
        self._lengths = [0] * batch_size
        self._logits = np.zeros((batch_size, manifest.vocab_size), np.float32)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens fed so far, int64 [B]."""
        return np.array(self._lengths, np.int64)

    def feed(self, token_ids: Sequence[Sequence[int]]) -> StepOutput:
        """Append tokens to each batch row; see `Decoder.feed`."""
        ends = self._history.append(self._lengths, token_ids)
        for call in self._runner.run(self._lengths, ends):
            for b, count in enumerate(call.counts):
                if count and call.starts[b] + count == ends[b]:
                    self._keep_result(b, call.outputs)
        self._lengths = ends
        return StepOutput(self._logits)

    def _keep_result(self, b: int, outputs: Arrays) -> None:
        """Copy what the graph said of the last position of batch row b."""
        self._logits[b] = outputs["logits"][b, 0]

    def flush(self) -> None:
        """Nothing is ever deferred here."""
