"""The rows of a run: what they are made of, and which of them see each other."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.checkpoint.names import stream_table_name
from quatrain.exporter.reference.weights import Weights
from quatrain.exporter.spec import DecoderSpec

__all__ = ["Rows", "embed_rows", "find_visible", "list_positions", "make_rows"]


@dataclass(frozen=True, slots=True)
class Rows:
    """Token and stream of each row, [R]: row i*n + s is stream s of token i.

    `documents` int64 [B, R] numbers the documents, which do not see each other; None: all are one.
    """

    tokens: NDArray[np.int64]
    streams: NDArray[np.int64]
    documents: NDArray[np.int64] | None


def make_rows(
    token_ids: NDArray[np.int64], num_streams: int, document_token_id: int | None
) -> Rows:
    """The rows of sequences [B, L]. A document begins with its token, and so there is one before
    the first such token."""
    tokens, streams = np.divmod(np.arange(token_ids.shape[1] * num_streams), num_streams)
    if document_token_id is None:
        return Rows(tokens, streams, None)
    documents = np.cumsum(token_ids == document_token_id, axis=1)
    return Rows(tokens, streams, documents[:, tokens])


def embed_rows(
    weights: Weights, token_ids: NDArray[np.int64], num_streams: int
) -> NDArray[np.float32]:
    """Each token of [B, L] looked up in every stream's table: float32 [B, L * n, H]."""
    tables = [stream_table_name(stream) for stream in range(num_streams)]
    looked_up = np.stack([weights.look_up(table, token_ids) for table in tables], axis=2)
    batch_size, length, _, hidden_size = looked_up.shape
    return looked_up.reshape(batch_size, length * num_streams, hidden_size)


def list_positions(spec: DecoderSpec, layer: int, rows: Rows) -> NDArray[np.int64]:
    """The position of each row in a layer, [R]: of its token if the layer keeps to its stream,
    else of the row among all rows."""
    if spec.is_intra_stream(layer):
        return rows.tokens
    return np.arange(len(rows.tokens))


def find_visible(spec: DecoderSpec, layer: int, rows: Rows) -> NDArray[np.bool_]:
    """Whether a row (first R) sees another one (second R) in a layer: bool [B or 1, R, R]."""
    positions = list_positions(spec, layer, rows)
    behind = positions[:, None] - positions[None, :]
    visible: NDArray[np.bool_] = behind >= 0
    if spec.is_intra_stream(layer):
        visible &= rows.streams[:, None] == rows.streams[None, :]
    window = spec.backbone.window(layer)
    if window is not None:
        visible &= behind < window  # a row is the first in its own window
    if rows.documents is None:
        return visible[None]
    same: NDArray[np.bool_] = rows.documents[:, :, None] == rows.documents[:, None, :]
    return visible & same
