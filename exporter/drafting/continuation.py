"""Windows that end in what the model writes itself: that is what drafts will be made of."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.checkpoint import Checkpoint
from quatrain.exporter.drafting.settings import NUM_DRAFTS
from quatrain.exporter.drafting.work_folder import DraftingFolder
from quatrain.exporter.errors import ExportError
from quatrain.exporter.progress import Progress
from quatrain.exporter.steps import walk_steps
from quatrain.exporter.temporary_bundle import temporary_bundle
from quatrain.runtime.llm import LLM
from quatrain.runtime.sampling import SamplingParams

__all__ = ["Continuation", "continue_prompts", "settle_continuation"]

_BATCH = 8  # prompts that are gone on with together: a token of all costs little more than of one
_LEAST_PROMPT = 2


@dataclass(frozen=True, slots=True)
class Continuation:
    """The last `tokens` of each window are the model's own: the likeliest ones at temperature 0,
    else drawn, with the number of the window as the seed."""

    tokens: int
    temperature: float


def settle_continuation(
    source: Checkpoint, window: int, tokens: int, temperature: float | None
) -> Continuation | None:
    """What was asked for; None where windows are to stay as the text has them.

    Raises:
        ExportError: A number is out of its range.
    """
    if temperature is not None and not 0 <= temperature < math.inf:
        raise ExportError(
            f"fit with --continue-temperature {temperature}",
            "it must be 0 or more, and finite",
            "leave it out for the likeliest tokens",
        )
    if tokens:
        _check_tokens(source, window, tokens)
        return Continuation(tokens, 0.0 if temperature is None else temperature)
    if temperature is not None:
        raise ExportError(
            f"fit with --continue-temperature {temperature}",
            "the model writes nothing, since --continue-tokens is 0",
            "say with --continue-tokens how many tokens of each window it is to write, or leave"
            " it out",
        )
    return None


def _check_tokens(source: Checkpoint, window: int, tokens: int) -> None:
    positions = source.spec.backbone.max_position_embeddings
    if window > positions:
        raise ExportError(
            f"windows of {window} tokens (--window)",
            f"the checkpoint knows {positions} positions",
            f"choose a window of at most {positions}",
        )
    if not NUM_DRAFTS <= tokens <= window - _LEAST_PROMPT:
        raise ExportError(
            f"windows of {window} tokens (--window), {tokens} of them written by the model"
            " (--continue-tokens)",
            f"it needs {_LEAST_PROMPT} of the text to go on from, and {NUM_DRAFTS} drafts are"
            " measured on what it writes",
            f"choose --continue-tokens from {NUM_DRAFTS} to {window - _LEAST_PROMPT}, or another"
            " --window",
        )


def continue_prompts(
    source: Checkpoint,
    prompts: NDArray[np.int64],
    continuation: Continuation,
    work: DraftingFolder,
    progress: Progress,
) -> NDArray[np.int64]:
    """Prompts int64 [N, P] and what the model writes behind each, int64 [N, P + tokens].

    EOS ends nothing: every window is filled. What was written lies in a file of `work`, a batch of
    prompts at a time, and is gone on with from there.
    """
    count, length = prompts.shape
    done = work.count_written(continuation.tokens, _BATCH, count)
    if done < count:
        window = length + continuation.tokens
        with (
            temporary_bundle(source, window, work.path, progress, max_batch=_BATCH) as bundle,
            LLM(bundle, backend="onnxruntime", verify=False) as llm,
            progress.stage("write text"),
        ):
            num_batches = -(-count // _BATCH)
            for batch in walk_steps("batches", num_batches, done // _BATCH, progress):
                rows = range(batch * _BATCH, min((batch + 1) * _BATCH, count))
                work.append_written(_write_batch(llm, prompts, rows, continuation))
    vocab_size = source.spec.backbone.vocab_size
    written = work.load_written(count, continuation.tokens, vocab_size)
    return np.concatenate([prompts, written], axis=1)


def _write_batch(
    llm: LLM, prompts: NDArray[np.int64], rows: range, continuation: Continuation
) -> NDArray[np.int64]:
    params = [
        SamplingParams(
            temperature=continuation.temperature,
            seed=row,
            max_tokens=continuation.tokens,
            ignore_eos=True,
        )
        for row in rows
    ]
    results = llm.generate(prompts[rows.start : rows.stop].tolist(), params)
    return np.array([result.token_ids for result in results], np.int64)
