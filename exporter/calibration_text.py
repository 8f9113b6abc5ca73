"""The text that something is fitted to, as windows of token ids."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.checkpoint import Checkpoint
from quatrain.exporter.checkpoint_tokenizer import open_checkpoint_tokenizer
from quatrain.exporter.errors import ExportError
from quatrain.exporter.text_file import read_text
from quatrain.exporter.token_file import read_token_file

__all__ = ["CalibrationText", "read_windows"]

_HELD_OUT = 0.1


@dataclass(frozen=True, slots=True)
class CalibrationText:
    """Windows int64 [N, window]: those that are fitted to, and the last ones, held out."""

    fitted: NDArray[np.int64]
    held_out: NDArray[np.int64]


def read_windows(
    source: Checkpoint,
    path: Path,
    tokens: int | None,
    window: int,
    *,
    asked: str,
    default_tokens: int,
) -> CalibrationText:
    """Cut a text into windows that see nothing of each other; the last tenth of them, one at least,
    is held out.

    A window begins with BOS where the checkpoint's texts do. What is behind the last whole window
    is left out.

    Args:
        path: A text in UTF-8, or token ids: an integer array [L] in a .npy file, taken as it is.
        tokens: How many to use at most (None: `default_tokens`).
        window: Tokens of a window.
        asked: What the text is for, for messages: "fit a drafter".

    Raises:
        CheckpointError: The tokenizer is damaged.
        ExportError: There is no tokenizer, or the text is too short for two windows.
        RequestError: The text or the array cannot be read.
    """
    positions = source.spec.backbone.max_position_embeddings
    if not 2 <= window <= positions:
        raise ExportError(
            f"windows of {window} tokens (--window)",
            f"the checkpoint knows {positions} positions, and a window of less than 2 no context",
            f"choose a window from 2 to {positions}",
        )
    limit = default_tokens if tokens is None else tokens
    ids, bos = _read_ids(source, path, asked)
    ids = ids[: max(limit, 0)]
    step = window - len(bos)
    count = len(ids) // step
    if count < 2:
        raise ExportError(
            f"{asked} to {path} in windows of {window} tokens",
            f"{len(ids)} tokens, too few for two windows: one to fit to and one held out",
            "give a longer text or more --tokens, or a smaller --window",
        )
    cut = ids[: count * step].reshape(count, step)
    windows = np.concatenate([np.tile(np.array(bos, np.int64), (count, 1)), cut], axis=1)
    num_held_out = max(1, round(count * _HELD_OUT))
    return CalibrationText(windows[:-num_held_out], windows[-num_held_out:])


def _read_ids(source: Checkpoint, path: Path, asked: str) -> tuple[NDArray[np.int64], list[int]]:
    """The ids of the text without BOS, and what each window begins with."""
    if path.suffix == ".npy":
        given = read_token_file(path)
        _check_ids(given, source.spec.backbone.vocab_size, f"{asked} to the token ids {path}")
        return given.astype(np.int64), []
    tokenizer = open_checkpoint_tokenizer(source)
    if tokenizer is None:
        raise ExportError(
            f"{asked} to the text {path}",
            f"{source.folder} has no tokenizer.json",
            "add it, or give token ids: an integer array in a .npy file",
        )
    ids = tokenizer.encode(read_text(path))
    bos = ids[:1] if ids and ids[0] == tokenizer.bos_token_id else []
    array = np.array(ids[len(bos) :], np.int64)
    _check_ids(array, source.spec.backbone.vocab_size, f"{asked} to the text {path}")
    return array, bos


def _check_ids(array: NDArray[np.integer], vocab_size: int, asked: str) -> None:
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < vocab_size:
        raise ExportError(
            asked,
            f"ids from {array.min()} to {array.max()}, and a vocabulary of {vocab_size}",
            "use the tokenizer that belongs to this checkpoint",
        )
