"""What every decoding strategy is: a batch of sequences, its cache, and one way to extend them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Decoder", "StepOutput"]


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What follows the last token fed to each batch row.

    `logits` is float32 [B, V], of the exit taken where there are exits; `exits` int64 [B] is that
    exit's index (the final head has the last), or None for a model without exits. Rows fed
    nothing hold no meaning. The decoder reuses the memory of `logits` in its next `feed`.
    """

    logits: NDArray[np.float32]
    exits: NDArray[np.int64] | None = None


class Decoder(Protocol):
    """A batch of sequences being extended, with whatever state its strategy keeps."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens fed so far, int64 [B]; the next one gets this position."""
        ...

    def feed(self, token_ids: Sequence[Sequence[int]]) -> StepOutput:
        """Append tokens to each batch row (none: the row stays idle) and look at its last one.

        Long runs are cut into chunks. A row may be fed any number of tokens at any time, so a
        prompt, a generated token and the next turn of a conversation are all this call. Each row
        gives what it would give alone.

        Raises `RequestError`, with nothing changed, for an id outside the vocabulary, a row that
        would outgrow max_seq_len, or another number of rows than the batch has.
        """
        ...

    def flush(self) -> None:
        """Complete whatever was deferred, so that the cache is whole."""
        ...
