"""Scores every position of given sequences, chunk by chunk, over a cache of its own."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quatrain.runtime.decoding.history import TokenHistory
from quatrain.runtime.decoding.row_runner import RowRunner
from quatrain.runtime.decoding.row_source import choose_token_source
from quatrain.runtime.decoding.segments import Segments, require_exits
from quatrain.runtime.errors import RequestError
from quatrain.runtime.manifest import Manifest
from quatrain.runtime.session import Model, Sizes

__all__ = ["ExitScores", "count_scored_rows", "score_chunks", "score_exits", "score_tokens"]

# Logits of one chunk: small enough for any device, large enough to fill matrix products.
CHUNK_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class ExitScores:
    """What a model with N exits says at each position.

    `exit_logits` is float32 [N, B, L, V]; `exit_logprobs` float32 [N, B, L] the log of the
    probability p_k that a token leaves at exit k: p_k = exit_k * product of earlier continue_j,
    and the final exit gets what remains (N-vium, arXiv 2605.13190).
    """

    exit_logits: NDArray[np.float32]
    exit_logprobs: NDArray[np.float32]


def score_tokens(model: Model, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """Scores of the token after each position: int64 [B, L] to float32 [B, L, V].

    Logits for a dense model; for one with exits the log-probabilities of the mixture,
    logsumexp_k(log p_k + log_softmax(logits_k)).
    """
    token_ids = _check_tokens(token_ids)
    result = np.empty((*token_ids.shape, model.manifest.vocab_size), np.float32)
    for columns, scores in score_chunks(model, token_ids):
        result[:, columns] = scores
    return result


def score_chunks(
    model: Model, token_ids: NDArray[np.int64]
) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """The scores of `score_tokens` chunk by chunk, for whoever cannot hold them all.

    Yields positions and their float32 [B, R, V], which is void once the next chunk is asked for.
    """
    token_ids = _check_tokens(token_ids)
    if model.manifest.exits is None:
        for columns, logits in _score_dense(model, token_ids):
            yield columns, logits.astype(np.float32, copy=False)
        return
    num_exits = len(model.manifest.exits.segments)
    mixture = np.zeros(0, np.float32)
    for k, columns, logits, exit_logprobs in _score_segments(model, token_ids):
        scores = _log_softmax(logits)
        scores += exit_logprobs[..., None]
        mixture = _add_in_log_space(scores, mixture) if k else scores
        if k + 1 == num_exits:
            yield columns, mixture


def score_exits(model: Model, token_ids: NDArray[np.int64]) -> ExitScores:
    """Logits and probability of every exit at every position of int64 [B, L]."""
    token_ids = _check_tokens(token_ids)
    num_exits = len(require_exits(model).segments)
    shape = (num_exits, *token_ids.shape)
    scores = ExitScores(
        np.empty((*shape, model.manifest.vocab_size), np.float32), np.empty(shape, np.float32)
    )
    for k, columns, logits, exit_logprobs in _score_segments(model, token_ids):
        scores.exit_logits[k, :, columns] = logits
        scores.exit_logprobs[k, :, columns] = exit_logprobs
    return scores


def count_scored_rows(manifest: Manifest, batch_size: int) -> int:
    """Positions per sequence whose logits are asked for in one call, at most."""
    row_bytes = batch_size * manifest.vocab_size * 4
    return max(1, min(manifest.limits.prefill_chunk, CHUNK_BYTES // row_bytes))


def _score_dense(
    model: Model, token_ids: NDArray[np.int64]
) -> Iterator[tuple[slice, NDArray[np.generic]]]:
    batch_size, length = token_ids.shape
    cache = model.allocate_cache(batch_size)
    graphs = model.bind(cache)
    history = _write_history(model, token_ids)
    source = choose_token_source(model, history)
    name = next(graph.name for graph in model.manifest.graphs if graph.role == "decoder")
    chunk = count_scored_rows(model.manifest, batch_size)
    runner = RowRunner(graphs[name], cache, source, chunk, history.documents)
    for call in runner.run([0] * batch_size, [length] * batch_size, every_row=True):
        yield slice(call.starts[0], call.starts[0] + call.counts[0]), call.outputs["logits"]


def _score_segments(
    model: Model, token_ids: NDArray[np.int64]
) -> Iterator[tuple[int, slice, NDArray[np.generic], NDArray[np.float32]]]:
    """For each chunk and exit k: k, the chunk's positions, logits_k [B, R, V], log p_k [B, R]."""
    batch_size, length = token_ids.shape
    chunk = count_scored_rows(model.manifest, batch_size)
    history = _write_history(model, token_ids)
    segments = Segments(model, history, chunk)
    for start in range(0, length, chunk):
        columns = slice(start, min(start + chunk, length))
        remaining = np.zeros((batch_size, columns.stop - start), np.float32)
        for k, runner in enumerate(segments.runners):
            starts, ends = [start] * batch_size, [columns.stop] * batch_size
            (call,) = runner.run(starts, ends, every_row=True)
            logits = _run_head(segments, k, call.outputs["exit_state"])
            if k + 1 == len(segments.runners):
                yield k, columns, logits, remaining
                continue
            segments.hidden[:, columns] = call.outputs["updated_hidden"]
            router = call.outputs["router_logprobs"]
            yield k, columns, logits, remaining + router[..., 1]
            remaining += router[..., 0]


def _run_head(segments: Segments, k: int, states: NDArray[np.generic]) -> NDArray[np.generic]:
    head = segments.heads[segments.layout.heads[k]]
    batch_size, rows, _ = states.shape
    head.prepare(Sizes(batch_size, outputs=rows))["exit_state"][...] = states
    return head.execute()["logits"]


def _write_history(model: Model, token_ids: NDArray[np.int64]) -> TokenHistory:
    history = TokenHistory(model.manifest, len(token_ids))
    history.append([0] * len(token_ids), token_ids.tolist())
    return history


def _check_tokens(token_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    token_ids = np.asarray(token_ids)
    if token_ids.ndim != 2 or not token_ids.size or token_ids.dtype.kind not in "iu":
        raise RequestError(
            "the scores of a batch of sequences",
            f"an array of {token_ids.dtype} with shape {token_ids.shape}",
            "give integers [batch, length], with at least one token",
        )
    return token_ids


def _log_softmax(logits: NDArray[np.generic]) -> NDArray[np.float32]:
    shifted = logits.astype(np.float32)
    shifted -= shifted.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def _add_in_log_space(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """log(exp(a) + exp(b)), with `a` as working space; several times as fast as np.logaddexp."""
    peak = np.maximum(a, b)
    a -= peak
    np.exp(a, out=a)
    a += np.exp(b - peak)
    np.log(a, out=a)
    a += peak
    return a
