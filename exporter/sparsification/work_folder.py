"""The folder that a calibration can be resumed from: what it belongs to, and how far it got."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.checkpoint import LazyTensor
from quatrain.exporter.checkpoint.safetensors_header import read_safetensors_header
from quatrain.exporter.derivation import ArrayTensor, write_tensor_file
from quatrain.exporter.resumable_folder import ResumableFolder

__all__ = ["WorkFolder"]

_MOMENTS = "moments.npz"


class WorkFolder(ResumableFolder):
    """The sums of a calibration, and the predictors that were fitted to them.

    The rank of a predictor is not part of its identity: other ranks can be fitted to the same
    calibration.
    """

    def load_moments(self) -> tuple[NDArray[np.float32], int] | None:
        """The sum of x x^T in each layer, float32 [L, d, d], and the number of windows it is over;
        None where there is none yet."""
        stored = self.load_arrays(_MOMENTS)
        if stored is None:
            return None
        if stored.keys() != {"sums", "num_windows"}:
            self.refuse(f"{_MOMENTS} holds something else")
        return stored["sums"], int(stored["num_windows"])

    def save_moments(self, sums: NDArray[np.float32], num_windows: int) -> None:
        """Replace it."""
        self.save_arrays(_MOMENTS, {"sums": sums, "num_windows": num_windows})

    def find_predictor(self, layer: int, rank: int) -> dict[str, LazyTensor] | None:
        """The tensors of a fitted predictor by name, None where it has not been fitted yet."""
        path = self._predictor_path(layer, rank)
        return read_safetensors_header(path) if path.exists() else None

    def save_predictor(self, layer: int, rank: int, tensors: Mapping[str, ArrayTensor]) -> None:
        """Keep a fitted predictor."""
        path = self._predictor_path(layer, rank)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.unlink(missing_ok=True)
        write_tensor_file(temporary, tensors)
        os.replace(temporary, path)

    def _predictor_path(self, layer: int, rank: int) -> Path:
        return self.path / f"predictor-{layer}-rank-{rank}.safetensors"
