"""What the first input of a graph is at each position: tokens, their embeddings, hidden rows."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quatrain.runtime.decoding.history import TokenHistory
from quatrain.runtime.host_embeddings import MappedEmbeddings
from quatrain.runtime.session import Model

__all__ = ["ArrayRows", "EmbeddedTokens", "RowSource", "choose_token_source"]


class RowSource(Protocol):
    """An input of a graph, for each batch row and position."""

    @property
    def input_name(self) -> str:
        """Name of that input."""
        ...

    @property
    def capacity(self) -> int:
        """Positions of a batch row."""
        ...

    def fill(self, starts: Sequence[int], rows: int, out: NDArray[np.generic]) -> None:
        """Write batch row b's positions `starts[b] .. starts[b] + rows - 1` to `out[b]`.

        All are below `capacity`, and some may be padding: whatever is written must be finite, or
        a valid id.
        """
        ...


class ArrayRows:
    """An array [B, C, ...] that somebody else keeps up to date."""

    def __init__(self, input_name: str, array: NDArray[np.generic]) -> None:
        self.input_name = input_name
        self.capacity = array.shape[1]
        self._array = array

    def fill(self, starts: Sequence[int], rows: int, out: NDArray[np.generic]) -> None:
        """Copy the positions; see `RowSource`."""
        array = self._array
        for b, start in enumerate(starts):
            out[b] = array[b, start : start + rows]


class EmbeddedTokens:
    """The embeddings of the tokens fed so far, looked up when they are needed.

    Where nothing was fed yet the history holds id 0, so padding is the embedding of some token.
    """

    input_name = "inputs_embeds"

    def __init__(self, embeddings: MappedEmbeddings, tokens: NDArray[np.int64]) -> None:
        self.capacity = tokens.shape[1]
        self._embeddings = embeddings
        self._tokens = tokens

    def fill(self, starts: Sequence[int], rows: int, out: NDArray[np.generic]) -> None:
        """Look the positions up, all batch rows at once; see `RowSource`."""
        tokens = self._tokens
        ids = [tokens[b, start : start + rows] for b, start in enumerate(starts)]
        self._embeddings.look_up(np.stack(ids), out)


def choose_token_source(model: Model, history: TokenHistory) -> RowSource:
    """What the first graph of a model takes: ids, or where the tables stay on the host, rows."""
    if model.embeddings is None:
        return ArrayRows("input_ids", history.tokens)
    return EmbeddedTokens(model.embeddings, history.tokens)
