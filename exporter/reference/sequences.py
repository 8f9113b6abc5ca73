"""Checks the token sequences that are to be run."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quatrain.runtime.errors import RequestError

__all__ = ["check_sequences"]


def check_sequences(
    token_ids: NDArray[np.int64], lengths: Sequence[int] | None, vocab_size: int
) -> NDArray[np.int64]:
    """Sequences [B, L] with token 0 in place of whatever stands behind their lengths.

    Raises:
        RequestError: No sequences, lengths that are not theirs, or tokens not in the vocabulary.
    """
    token_ids = np.asarray(token_ids)
    if token_ids.ndim != 2 or 0 in token_ids.shape or token_ids.dtype.kind not in "iu":
        raise RequestError(
            "a run of the reference over sequences",
            f"an array of {token_ids.dtype} and shape {list(token_ids.shape)}",
            "give whole numbers of the shape [sequences, tokens], at least one of each",
        )
    num_sequences, longest = token_ids.shape
    lengths = [longest] * num_sequences if lengths is None else lengths
    if len(lengths) != num_sequences or not all(1 <= length <= longest for length in lengths):
        raise RequestError(
            f"a run of the reference over sequences of {list(lengths)} tokens",
            f"an array for {num_sequences} of them with up to {longest} tokens",
            "give one length for each row, between 1 and the number of columns",
        )
    is_token = np.arange(longest) < np.array(lengths)[:, None]
    filled = np.where(is_token, token_ids, 0).astype(np.int64)
    outside = filled[(filled < 0) | (filled >= vocab_size)]
    if outside.size:
        raise RequestError(
            f"a run of the reference over the token {outside[0]}",
            f"a vocabulary of {vocab_size} tokens, which are numbered from 0",
            "use the tokenizer that belongs to the checkpoint",
        )
    return filled
