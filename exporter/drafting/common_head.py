"""The head, cut to the tokens that a text has most of."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["cut_head"]

# They are 94 % of WikiText in SmolLM2's vocabulary of 49152; all would cost more than the dynamics.
_MOST_TOKENS = 2048


def cut_head(head: NDArray[np.generic], token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """The rows of a head [V, d] for the most frequent tokens of a text, float32 [C, d]."""
    tokens, counts = np.unique(token_ids, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    rows: NDArray[np.float32] = head[np.sort(tokens[order[:_MOST_TOKENS]])].astype(np.float32)
    return rows
