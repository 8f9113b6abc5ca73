"""Reading one tensor: its values, its bytes in pieces, and what cannot be read."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from quatrain.exporter.checkpoint.safetensors_header import read_safetensors_header
from quatrain.exporter.errors import CheckpointError


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_read_and_chunks_give_what_was_saved(tmp_path: Path, dtype: type[np.generic]) -> None:
    saved = {
        "a": np.arange(7).astype(dtype),
        "b": np.random.default_rng(1).standard_normal((5, 3)).astype(dtype),
    }
    save_file(saved, tmp_path / "f")
    for name, tensor in read_safetensors_header(tmp_path / "f").items():
        values = tensor.read()
        assert values.dtype == np.dtype(dtype) and not values.flags.writeable
        np.testing.assert_array_equal(values, saved[name])
        assert tensor.size == saved[name].size
        for chunk_bytes in (1, 5, 1 << 20):
            pieces = [bytes(chunk) for chunk in tensor.chunks(chunk_bytes)]
            assert max(map(len, pieces)) <= chunk_bytes
            assert b"".join(pieces) == saved[name].tobytes()


def test_other_dtypes_are_not_read(tmp_path: Path) -> None:
    save_file({"a": np.zeros(3, np.int8)}, tmp_path / "f")
    tensor = read_safetensors_header(tmp_path / "f")["a"]
    with pytest.raises(CheckpointError, match="it is stored as I8"):
        tensor.read()
    assert len(b"".join(tensor.chunks())) == 3


def test_file_cut_short_after_opening(tmp_path: Path) -> None:
    save_file({"a": np.zeros(100, np.float32)}, tmp_path / "f")
    tensor = read_safetensors_header(tmp_path / "f")["a"]
    whole = (tmp_path / "f").read_bytes()
    (tmp_path / "f").write_bytes(whole[:-8])
    with pytest.raises(CheckpointError, match="the file ends 8 bytes too early"):
        list(tensor.chunks())
