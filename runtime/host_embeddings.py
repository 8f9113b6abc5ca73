"""Embedding tables that stay in their files: rows are looked up on the host, for each token."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quatrain.runtime.errors import BundleError, fix_reading
from quatrain.runtime.manifest import HostEmbeddings, StoredTable

__all__ = ["MappedEmbeddings"]

# A bfloat16 is the upper half of a float32.
_STORED = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}
_BFLOAT16_SHIFT = 16


class MappedEmbeddings:
    """The tables of `manifest.embeddings`, mapped: memory holds what was looked up, no more.

    Args:
        bundle: The folder of the bundle.
        record: Its tables, one per row of a token.

    Raises:
        BundleError: a file is missing, or ends before its table does.
    """

    def __init__(self, bundle: Path, record: HostEmbeddings) -> None:
        self._tables: list[NDArray[np.generic]] | None = [
            _map_table(bundle / table.path, table) for table in record.tables
        ]

    def look_up(self, token_ids: NDArray[np.int64], out: NDArray[np.generic]) -> None:
        """Write the rows of tokens, int64 [...], to `out`, float32 [..., n * H]: stream 0 first.

        The ids must be in the vocabulary, as those of a `TokenHistory` are. Raises `RuntimeError`
        after `close`.
        """
        if self._tables is None:
            raise RuntimeError("this model is closed")
        start = 0
        for table in self._tables:
            end = start + table.shape[1]
            _copy_rows(table[token_ids], out[..., start:end])
            start = end

    def close(self) -> None:
        """Give up the mappings. Closing twice is harmless."""
        self._tables = None


def _copy_rows(rows: NDArray[np.generic], out: NDArray[np.generic]) -> None:
    if rows.dtype.kind == "u":
        np.left_shift(rows, _BFLOAT16_SHIFT, out=out.view(np.uint32), dtype=np.uint32)
    else:
        out[...] = rows


def _map_table(path: Path, table: StoredTable) -> NDArray[np.generic]:
    """The table as its stored words, [rows, columns]; a plain view, since a memmap is slower."""
    end = table.offset + table.num_bytes
    try:
        size = path.stat().st_size
        if size >= end:
            stored = np.dtype(_STORED[table.dtype])
            shape = (table.shape[0], table.shape[1])
            return np.asarray(np.memmap(path, stored, "r", table.offset, shape))
    except OSError as error:
        raise BundleError(
            f"read the embeddings in {path}",
            f"it cannot be mapped ({error.strerror or error})",
            fix_reading(error, "export the checkpoint again, or restore the bundle from a copy"),
        ) from error
    raise BundleError(
        f"read the embeddings in {path}",
        f"{size} bytes, where the table ends at {end}",
        "export the checkpoint again, or restore the bundle from a copy",
    )
