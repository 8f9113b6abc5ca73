"""Piggyback decoding of a model with exits (N-vium, arXiv 2605.13190): deferred positions ride
along with the next token that goes deeper."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from quatrain.runtime.decoding.decoder import StepOutput
from quatrain.runtime.decoding.history import TokenHistory
from quatrain.runtime.decoding.routing import Routing
from quatrain.runtime.decoding.segments import Segments
from quatrain.runtime.errors import RequestError
from quatrain.runtime.session import Model, Sizes

__all__ = ["PiggybackDecoder"]


class PiggybackDecoder:
    """A batch of sequences of a model with exits.

    `filled[k][b]` counts the positions of batch row b whose keys and values segment k has
    complete. It never increases with k, so what a segment lacks is one run of positions: a
    staircase. A token that exits leaves the deeper segments as they are; one that goes on takes
    all positions its next segment lacks with it, in the same call.

    Args:
        routing: One per batch row.
        max_deferred: Positions that any segment may lack between calls of `feed`; a row with more
            is completed at once (None: no bound). Changes no number beyond rounding, and keeps
            calls that decode at no more than max_deferred + 1 rows.
    """

    def __init__(
        self,
        model: Model,
        batch_size: int,
        routing: Sequence[Routing],
        max_deferred: int | None = None,
    ) -> None:
        manifest = model.manifest
        _check_arguments(batch_size, routing, max_deferred)
        self._history = TokenHistory(manifest, batch_size)
        self._segments = Segments(model, self._history, model.prefill_chunk)
        self.cache = self._segments.cache
        self._routing = routing
        self._max_deferred = max_deferred
        self.filled = [[0] * batch_size for _ in self._segments.runners]
        # At the last position a row ran in the segment run last, and at the exit it took.
        hidden_size = self._segments.hidden.shape[-1]
        self._last_states = np.zeros((batch_size, hidden_size), np.float32)
        self._last_router = np.zeros((batch_size, 2), np.float32)
        self._exit_states = np.zeros((batch_size, hidden_size), np.float32)
        self._logits = np.zeros((batch_size, manifest.vocab_size), np.float32)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens fed so far, int64 [B]."""
        return np.array(self.filled[0], np.int64)

    @property
    def num_deferred(self) -> NDArray[np.int64]:
        """Positions not yet complete in every segment, int64 [B]."""
        return self.lengths - np.array(self.filled[-1], np.int64)

    def feed(self, token_ids: Sequence[Sequence[int]]) -> StepOutput:
        """Append tokens to each batch row; see `Decoder.feed`.

        Several tokens go through every segment at once, with whatever was deferred before them;
        the logits are still those of the exit that the routers choose for the last one.
        """
        ends = self._history.append(self.filled[0], token_ids)
        whole = {b for b, row in enumerate(token_ids) if len(row) > 1}
        climbing = {b for b, row in enumerate(token_ids) if len(row)}
        fed = sorted(climbing)
        exits = [0] * len(ends)
        for k in range(len(self.filled)):
            running = climbing | whole
            if not running:
                break
            self._run_segment(k, running, ends)
            for b in sorted(climbing):
                if self._leaves(k, b):
                    exits[b] = k
                    self._exit_states[b] = self._last_states[b]
                    climbing.remove(b)
        self._run_heads(fed, exits)
        self._bound_deferral()
        return StepOutput(self._logits, np.array(exits))

    def flush(self) -> None:
        """Complete every position in every segment."""
        self._complete(range(len(self.filled[0])))

    def _run_segment(self, k: int, running: Iterable[int], ends: Sequence[int]) -> None:
        """Bring the running rows up to `ends` in segment k.

        The others would be padding there; what they have deferred at this depth goes along, as
        far as it fits, and costs nothing.
        """
        filled = self.filled[k]
        wanted = list(filled)
        for b in running:
            wanted[b] = ends[b]
        ready = self.filled[k - 1] if k else wanted
        for call in self._segments.runners[k].run(filled, wanted, ready):
            outputs = call.outputs
            for b, count in enumerate(call.counts):
                if not count:
                    continue
                start = call.starts[b]
                if k + 1 < len(self.filled):
                    rows = outputs["updated_hidden"][b, :count]
                    self._segments.hidden[b, start : start + count] = rows
                    self._last_router[b] = outputs["router_logprobs"][b, 0]
                self._last_states[b] = outputs["exit_state"][b, 0]
                filled[b] = start + count
        self._check_staircase(k)

    def _leaves(self, k: int, b: int) -> bool:
        """Whether row b takes exit k, at the position it ran last."""
        is_final = k + 1 == len(self.filled)
        return is_final or self._routing[b].decide(k, self._last_router[b])

    def _run_heads(self, fed: Sequence[int], exits: Sequence[int]) -> None:
        """Logits of each fed row, one call per head graph in use."""
        by_head: dict[str, list[int]] = {}
        for b in fed:
            by_head.setdefault(self._segments.layout.heads[exits[b]], []).append(b)
        for name, rows in by_head.items():
            graph = self._segments.heads[name]
            states = graph.prepare(Sizes(len(rows)))["exit_state"]
            for i, b in enumerate(rows):
                states[i, 0] = self._exit_states[b]
            logits = graph.execute()["logits"]
            for i, b in enumerate(rows):
                self._logits[b] = logits[i, 0]

    def _bound_deferral(self) -> None:
        if self._max_deferred is None:
            return
        # The deepest segment lacks the most.
        pairs = zip(self.filled[0], self.filled[-1], strict=True)
        over = [b for b, (run, done) in enumerate(pairs) if run - done > self._max_deferred]
        if over:
            self._complete(over)

    def _complete(self, rows: Iterable[int]) -> None:
        rows = list(rows)
        for k in range(1, len(self.filled)):
            self._run_segment(k, rows, self.filled[0])

    def _check_staircase(self, k: int) -> None:
        """Our own invariant: no segment is ahead of the one before it."""
        if k:
            pairs = zip(self.filled[k - 1], self.filled[k], strict=True)
            assert all(before >= here for before, here in pairs), self.filled


def _check_arguments(batch_size: int, routing: Sequence[Routing], max_deferred: int | None) -> None:
    if len(routing) != batch_size:
        raise RequestError(
            f"{len(routing)} routings for a batch of {batch_size}",
            "each sequence has its own",
            "give one per sequence",
        )
    if max_deferred is not None and max_deferred < 0:
        raise RequestError(
            f"max_deferred = {max_deferred}",
            "it counts positions",
            "give 0 or more, or None for no bound",
        )
