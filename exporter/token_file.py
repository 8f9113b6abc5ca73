"""Reads a file of token ids a user names."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quatrain.runtime.errors import RequestError

__all__ = ["read_token_file"]


def read_token_file(path: Path) -> NDArray[np.integer]:
    """The integers [L] of a `.npy` file; raises `RequestError` where there are none."""
    asked = f"read token ids from {path}"
    fix = "save them with numpy.save, as one array of integers [length]"
    try:
        ids = np.load(path, allow_pickle=False)
    except OSError as error:
        raise RequestError(asked, error.strerror or str(error), "name a readable file") from error
    except (ValueError, EOFError) as error:
        raise RequestError(asked, f"no NumPy array: {error}", fix) from error
    if not isinstance(ids, np.ndarray) or ids.ndim != 1 or ids.dtype.kind not in "iu":
        found = f"an array of {ids.dtype} {list(ids.shape)}" if hasattr(ids, "dtype") else "several"
        raise RequestError(asked, found, fix)
    return ids
