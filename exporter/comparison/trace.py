"""What one side computed, token by token, under the names that the reference gives it."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.errors import ComparisonError

__all__ = ["Trace", "find_layer", "list_tokens", "match_shapes", "split_tokens"]

Trace = dict[str, NDArray[Any]]
"""Arrays [B, L, ...], L tokens, by name: a token's rows, and the heads of a cache, have axes of
their own, [B, L, rows, H] and [B, L, rows, heads, D]."""

_CACHES = ("key_cache.", "value_cache.")
_ROWS = re.compile(r"embedding|layers\.\d+\.(attention|output|active_channels)")
_LAYER = re.compile(r"(?:layers|key_cache|value_cache)\.(\d+)")


def split_tokens(taps: Mapping[str, NDArray[Any]], num_tokens: int) -> Trace:
    """The reference's arrays, or the caches of a runner, by token."""
    return {name: _split(name, array, num_tokens) for name, array in taps.items()}


def find_layer(tensor: str) -> int | None:
    """The layer that a tensor is of; None outside all layers."""
    found = _LAYER.match(tensor)
    return None if found is None else int(found[1])


def match_shapes(
    name: str, reference: NDArray[Any], found: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Both of one shape: of the reference the tokens, rows and heads that the other side has.

    A bundle keeps the rows and heads that something reads, which are those of the last stream.

    Raises:
        ComparisonError: They differ in anything else.
    """
    reference = reference[:, : found.shape[1]]
    found = found[:, : reference.shape[1]]
    if reference.ndim == found.ndim and _ROWS.fullmatch(name):
        reference = reference[:, :, -found.shape[2] :]
    if reference.ndim == found.ndim and name.startswith(_CACHES):
        reference = reference[:, :, :, -found.shape[3] :]
    if reference.shape != found.shape:
        raise ComparisonError(
            f"compare {name} with the checkpoint's",
            f"shape {list(found.shape)} against {list(reference.shape)} (sequences, tokens, ...)",
            "export the checkpoint again with this version of quatrain",
        )
    return reference, found


def list_tokens(name: str, lengths: Iterable[int], num_tokens: int) -> NDArray[np.bool_]:
    """Which of the tokens [B, num_tokens] of a tensor mean something, by the sequences' lengths."""
    ahead = int(name.split(".")[1]) if name.startswith("draft.") else 0
    ends = np.asarray([length - ahead for length in lengths])
    return np.arange(num_tokens) < ends[:, None]


def _split(name: str, array: NDArray[Any], num_tokens: int) -> NDArray[Any]:
    if name.startswith(_CACHES):
        # [B, heads, positions, D]; a position is a token, or one of its rows.
        by_position = array.transpose(0, 2, 1, 3)
        batch_size, positions, heads, size = by_position.shape
        return by_position.reshape(batch_size, num_tokens, positions // num_tokens, heads, size)
    if _ROWS.fullmatch(name):
        return array.reshape(len(array), num_tokens, -1, array.shape[-1])
    return array
