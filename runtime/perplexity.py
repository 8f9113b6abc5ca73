"""How well a model predicts a text."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quatrain.runtime.errors import RequestError
from quatrain.runtime.length_limit import advise_on_length
from quatrain.runtime.llm import LLM
from quatrain.runtime.manifest import Manifest
from quatrain.runtime.requests import Prompt
from quatrain.runtime.sampling import check_finite

__all__ = ["DEFAULT_WINDOW", "PerplexityResult", "perplexity", "token_nlls"]

DEFAULT_WINDOW = 512

_LOG_SOFTMAX_ROWS = 64  # float64 copies of this many rows of logits at a time


@dataclass(frozen=True, slots=True)
class PerplexityResult:
    """Of one text.

    Args:
        perplexity: exp of the mean negative log-likelihood per token.
        nll: Sum of the negative log-likelihoods, in nats.
        tokens: Tokens predicted.
        windows: Windows they were predicted in.
        window: Most tokens per window, its first, which is only seen, included.
        bits_per_byte: `nll` in bits per UTF-8 byte: comparable between tokenizers. None for a text
            given as token ids.
    """

    perplexity: float
    nll: float
    tokens: int
    windows: int
    window: int
    bits_per_byte: float | None


def perplexity(
    llm: LLM,
    text: Prompt,
    *,
    window: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PerplexityResult:
    """Predict every token of `text` once, in windows that see nothing of each other.

    A window begins with BOS where the text does, else with the last token of the window before it
    (so that only the very first token of the text goes unpredicted). For a model with exits this is
    the perplexity of the mixture.

    Args:
        text: Text, or token ids.
        window: Tokens per window; None is 512, or the bundle's limit where that is less. Longer
            ones see more and give lower numbers: compare at equal windows only.
        progress: Called after each window with how many are done and how many there are.

    Raises:
        RequestError: The text is too short, nothing tokenizes it, or no such window fits.
    """
    if isinstance(text, str) and llm.tokenizer is None:
        raise RequestError(
            "the perplexity of a text",
            "this bundle has no tokenizer (its checkpoint had none)",
            "add tokenizer.json to the checkpoint and export it again; in Python,"
            " quatrain.runtime.perplexity takes token ids, too",
        )
    ids = llm.encode(text)
    size = _read_window(window, llm.manifest)
    if len(ids) < 2:
        raise RequestError(
            f"the perplexity of a text of {len(ids)} tokens",
            "the first token has nothing to be predicted from",
            "give a longer text",
        )
    has_bos = llm.tokenizer is not None and ids[0] == llm.tokenizer.bos_token_id
    starts = range(1, len(ids), size - 1)
    nll = 0.0
    for done, start in enumerate(starts, 1):
        seen = ids[0] if has_bos else ids[start - 1]
        nll += _score_window(llm, [seen, *ids[start : start + size - 1]])
        if progress:
            progress(done, len(starts))
    num_bytes = len(text.encode()) if isinstance(text, str) else 0
    return PerplexityResult(
        perplexity=float(np.exp(nll / (len(ids) - 1))),
        nll=nll,
        tokens=len(ids) - 1,
        windows=len(starts),
        window=size,
        bits_per_byte=nll / math.log(2) / num_bytes if num_bytes else None,
    )


def _read_window(window: int | None, manifest: Manifest) -> int:
    limit = manifest.limits.max_seq_len
    if window is None:
        window = min(DEFAULT_WINDOW, limit)
    if type(window) is int and 2 <= window <= limit:
        return window
    fix = f"give an integer from 2 to {limit}" if limit > 1 else "score it with another bundle"
    if limit < 2 or (type(window) is int and window > limit):
        fix = advise_on_length(fix, max(window, 2) if type(window) is int else 2, manifest)
    raise RequestError(
        f"window={window!r}",
        f"this bundle holds sequences of {limit} tokens, and a window needs two",
        fix,
    )


def _score_window(llm: LLM, ids: list[int]) -> float:
    """The negative log-likelihood of all tokens after the first, in nats."""
    [logits] = llm.logits(ids[:-1])
    return float(np.sum(token_nlls(logits, np.asarray(ids[1:]))))


def token_nlls(logits: NDArray[np.float32], targets: NDArray[np.int64]) -> NDArray[np.float64]:
    """The negative log-likelihood of each of the tokens [R] by logits [R, V], in nats."""
    check_finite(logits.max())
    nlls = np.empty(len(targets))
    for at in range(0, len(targets), _LOG_SOFTMAX_ROWS):
        block = slice(at, at + _LOG_SOFTMAX_ROWS)
        scores = logits[block].astype(np.float64)
        scores -= scores.max(axis=-1, keepdims=True)
        picked = np.take_along_axis(scores, targets[block, None], axis=-1)[:, 0]
        nlls[block] = np.log(np.exp(scores).sum(axis=-1)) - picked
    return nlls
