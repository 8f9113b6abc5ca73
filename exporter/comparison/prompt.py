"""The token table: what a comparison feeds, from a text, or from ids where nothing tokenizes."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.passage import read_passage
from quatrain.exporter.text_file import read_text
from quatrain.runtime.errors import RequestError
from quatrain.runtime.manifest import Manifest
from quatrain.runtime.tokenizer import open_tokenizer

__all__ = ["make_tokens"]

_MAX_SEQUENCES = 3


def make_tokens(
    bundle: Path, manifest: Manifest, text: Path | None, max_tokens: int
) -> NDArray[np.int64]:
    """Three sequences of different tokens, int64 [3, L], L at most `max_tokens` and what the bundle
    allows.

    The passage that comes along is used where no text is given, and ids drawn with a fixed seed
    where the bundle has no tokenizer, or one that makes nothing of the passage.

    Raises:
        RequestError: The text cannot be read, or is shorter than one chunk of a prompt; a text is
            given and nothing tokenizes it; fewer than 2 tokens are asked for.
    """
    limits = manifest.limits
    if type(max_tokens) is not int or max_tokens < 2:
        raise RequestError(
            f"a comparison over {max_tokens!r} tokens",
            "a next token is judged, so at least 2 are needed",
            "give a larger number of tokens",
        )
    length = min(max_tokens, limits.max_seq_len)
    if manifest.tokenizer is None:
        if text is not None:
            raise RequestError(
                f"a comparison over the text {text}",
                "this bundle has no tokenizer (its checkpoint had none)",
                "leave the text out: token ids are then drawn with a fixed seed",
            )
        table = _draw(manifest, length)
    else:
        table = _tokenize(bundle, manifest, text, length)
    return _begin_document(table, manifest)


def _draw(manifest: Manifest, length: int) -> NDArray[np.int64]:
    ids = np.random.default_rng(0).integers(manifest.vocab_size, size=(_MAX_SEQUENCES, length))
    return ids.astype(np.int64)


def _tokenize(
    bundle: Path, manifest: Manifest, text: Path | None, length: int
) -> NDArray[np.int64]:
    tokenizer = open_tokenizer(bundle, manifest)
    assert tokenizer is not None
    ids = tokenizer.encode(read_passage() if text is None else read_text(text))
    chunk = max(2, min(length, manifest.limits.prefill_chunk))
    if text is None and len(ids) < 2:  # a tokenizer that knows no English
        return _draw(manifest, length)
    if text is not None and len(ids) < chunk:
        raise RequestError(
            f"a comparison over the text {text}",
            f"it is {len(ids)} tokens, and one chunk of a prompt is {chunk}",
            "give a longer text, or ask for fewer tokens",
        )
    first = ids[:1] if ids[0] == tokenizer.bos_token_id else []
    body = ids[len(first) :]
    # Each sequence from another place in the text, which begins anew where it ends.
    step = max(1, len(body) // _MAX_SEQUENCES)
    rows = [
        [*first, *(body[(b * step + i) % len(body)] for i in range(length - len(first)))]
        for b in range(_MAX_SEQUENCES)
    ]
    return np.asarray(rows, np.int64)


def _begin_document(table: NDArray[np.int64], manifest: Manifest) -> NDArray[np.int64]:
    """Where documents see nothing of each other, two in the first sequence."""
    if manifest.document_token_id is not None:
        table = table.copy()
        table[0, table.shape[1] // 2] = manifest.document_token_id
    return table
