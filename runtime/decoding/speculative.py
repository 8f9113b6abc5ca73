"""Decoding with a drafter: tokens are guessed from the last state, and verified in one call.

The guesses come from latent dynamics that the model was trained with (HiLP, arXiv 2608.05806;
NextLat, arXiv 2511.05963). What is wrong is undone by lowering a length.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quatrain.runtime.decoding.plain import PlainDecoder
from quatrain.runtime.session import Arrays, Model, Sizes

__all__ = ["SpeculativeDecoder"]


class SpeculativeDecoder(PlainDecoder):
    """A batch of sequences of a model with a drafter.

    `feed` is that of any decoder. Between two calls of it, or in their place, rounds can be made:
    `start_drafting` and `draft` guess, `verify` feeds the last token and the guesses and gives the
    logits of all, `keep` says how many of them stay.
    """

    def __init__(self, model: Model, batch_size: int) -> None:
        super().__init__(model, batch_size)
        manifest = model.manifest
        assert manifest.drafter is not None
        self._drafter = self._graphs[manifest.drafter.graph]
        self._embeddings = model.embeddings
        hidden = next(i for i in manifest.graphs[0].outputs if i.name == "hidden").shape[-1]
        assert isinstance(hidden, int)
        # Of the last position of each row, and of each guess of the round.
        self._states = np.zeros((batch_size, hidden), np.float32)
        self._drafted = np.zeros((batch_size, hidden), np.float32)
        self._verified: NDArray[np.generic] = np.zeros((batch_size, 0, hidden), np.float32)

    def _keep_result(self, b: int, outputs: Arrays) -> None:
        super()._keep_result(b, outputs)
        self._states[b] = outputs["hidden"][b, 0]

    def start_drafting(self) -> None:
        """Begin a round: guesses go out from the state of each row's last position."""
        self._drafted[...] = self._states

    def draft(self, rows: Sequence[int], tokens: Sequence[int]) -> NDArray[np.generic]:
        """What the drafter says to follow `tokens[i]`, the latest of batch row `rows[i]`: logits
        [len(rows), V], which the next call overwrites."""
        inputs = self._drafter.prepare(Sizes(len(rows)))
        for i, b in enumerate(rows):
            inputs["state"][i] = self._drafted[b]
        if self._embeddings is None:
            inputs["input_ids"][...] = tokens
        else:
            self._embeddings.look_up(np.asarray(tokens, np.int64), inputs["inputs_embeds"])
        outputs = self._drafter.execute()
        for i, b in enumerate(rows):
            self._drafted[b] = outputs["updated_state"][i]
        return outputs["logits"]

    def verify(self, token_ids: Sequence[Sequence[int]]) -> NDArray[np.generic]:
        """Feed each row its last token and the guesses behind it (none: the row stays idle).

        Returns logits [B, R, V], those behind token i of a row at index i. Nothing is kept until
        `keep`.
        """
        ends = self._history.append(self._lengths, token_ids)
        calls = self._runner.run(self._lengths, ends, every_row=True)
        call = next(calls)
        rows = max(map(len, token_ids))
        if max(call.counts) == rows:  # no second call: its buffers may be looked at
            self._verified = call.outputs["hidden"]
            return call.outputs["logits"]
        logits = np.zeros((len(ends), rows, self._logits.shape[-1]), np.float32)
        self._verified = np.zeros((*logits.shape[:2], self._states.shape[-1]), np.float32)
        while True:
            for b, (start, count) in enumerate(zip(call.starts, call.counts, strict=True)):
                place = slice(start - self._lengths[b], start - self._lengths[b] + count)
                logits[b, place] = call.outputs["logits"][b, :count]
                self._verified[b, place] = call.outputs["hidden"][b, :count]
            following = next(calls, None)
            if following is None:
                return logits
            call = following

    def keep(self, counts: Sequence[int]) -> None:
        """Keep that many of the tokens just verified, per row; what lies behind will be overwritten
        before anything sees it."""
        for b, count in enumerate(counts):
            self._lengths[b] += count
            if count:
                self._states[b] = self._verified[b, count - 1]
