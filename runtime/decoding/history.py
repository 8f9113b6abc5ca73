"""The tokens fed to a batch so far, and the check of those about to be fed."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quatrain.runtime.errors import RequestError
from quatrain.runtime.length_limit import advise_on_length
from quatrain.runtime.manifest import Manifest

__all__ = ["TokenHistory"]


class TokenHistory:
    """Token ids by batch row and position, int64 [B, C]; zeros where nothing was fed yet."""

    def __init__(self, manifest: Manifest, batch_size: int) -> None:
        shape = (batch_size, manifest.cache.capacity)
        self.tokens = np.zeros(shape, np.int64)
        # The first position that each may attend to, where a token begins a new document.
        self.documents: NDArray[np.int64] | None = None
        self._document_token_id = manifest.document_token_id
        if self._document_token_id is not None:
            self.documents = np.zeros(shape, np.int64)
        self._manifest = manifest
        self._max_seq_len = manifest.limits.max_seq_len
        self._vocab_size = manifest.vocab_size

    def append(self, lengths: Sequence[int], token_ids: Sequence[Sequence[int]]) -> list[int]:
        """Write tokens behind each row's length and return the new lengths.

        Raises `RequestError`, with nothing written, for a wrong number of rows, an id outside the
        vocabulary, or a row that would outgrow max_seq_len.
        """
        if len(token_ids) != len(lengths):
            raise RequestError(
                f"tokens for {len(token_ids)} sequences",
                f"this decoder has a batch of {len(lengths)}",
                "give one list of tokens per sequence, empty for one that waits",
            )
        ends = [length + len(row) for length, row in zip(lengths, token_ids, strict=True)]
        for row, end in zip(token_ids, ends, strict=True):
            self._check(row, end)
        for b, row in enumerate(token_ids):
            self.tokens[b, lengths[b] : ends[b]] = row
            if self.documents is not None and len(row):
                self._begin_documents(self.documents[b], lengths[b], ends[b], self.tokens[b])
        return ends

    def _begin_documents(
        self,
        documents: NDArray[np.int64],
        start: int,
        end: int,
        tokens: NDArray[np.int64],
    ) -> None:
        before = documents[start - 1] if start else 0
        is_first = tokens[start:end] == self._document_token_id
        firsts = np.where(is_first, np.arange(start, end), before)
        documents[start:end] = np.maximum.accumulate(firsts)
        documents[end:] = 0  # padding may attend to anything

    def _check(self, row: Sequence[int], end: int) -> None:
        if end > self._max_seq_len:
            raise RequestError(
                f"a sequence of {end} tokens",
                f"this bundle was exported for at most {self._max_seq_len}",
                advise_on_length("shorten the prompt or max_tokens", end, self._manifest),
            )
        if len(row) and not 0 <= min(row) <= max(row) < self._vocab_size:
            raise RequestError(
                f"the token id {min(row) if min(row) < 0 else max(row)}",
                f"ids go from 0 to {self._vocab_size - 1}",
                "use the tokenizer that belongs to this model",
            )
