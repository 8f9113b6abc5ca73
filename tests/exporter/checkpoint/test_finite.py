"""NaN and infinity are counted exactly, however the bytes arrive."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.exporter.checkpoint.folders import DENSE, random_tensors, write_checkpoint

from quatrain.exporter.checkpoint import open_checkpoint
from quatrain.exporter.checkpoint.finite import BadWeight, NonFiniteCounter, find_bad_weights
from quatrain.exporter.progress import Progress

DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("piece", [1, 3, 4, 1000])
def test_counts_against_numpy(dtype: str, piece: int) -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 256, 6000, np.uint8)  # random bits: every kind of float is among them
    values = bits.view(DTYPES[dtype]).astype(np.float32)
    counter = NonFiniteCounter(dtype)
    data = bits.tobytes()
    for begin in range(0, len(data), piece):
        counter.update(memoryview(data)[begin : begin + piece])
    assert counter.num_nan == np.count_nonzero(np.isnan(values))
    assert counter.num_inf == np.count_nonzero(np.isinf(values))
    assert counter.num_nan + counter.num_inf > 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_largest_finite_values_pass(dtype: str) -> None:
    limits = ml_dtypes.finfo(DTYPES[dtype])
    counter = NonFiniteCounter(dtype)
    counter.update(np.array([limits.max, limits.min, -0.0], DTYPES[dtype]).tobytes())
    assert (counter.num_nan, counter.num_inf) == (0, 0)


def test_bad_weights_are_named(tmp_path: Path) -> None:
    tensors = random_tensors(DENSE)
    tensors["model.norm.weight"][3] = np.nan
    tensors["lm_head.weight"][4, :2] = [np.inf, -np.inf]
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, tensors))
    lines: list[str] = []
    progress = Progress(lines.append)
    assert find_bad_weights(checkpoint, progress) == [
        BadWeight("model.norm.weight", "model.safetensors", 16, 1, 0),
        BadWeight("lm_head.weight", "model.safetensors", 48 * 16, 0, 2),
    ]
    assert progress.stages[0].bytes == sum(value.nbytes for value in tensors.values())
    assert lines[0] == "check weights ..."
