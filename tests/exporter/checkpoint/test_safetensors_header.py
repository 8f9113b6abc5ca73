"""Headers of safetensors files: what is found in whole ones, and what is said of broken ones."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from tests.exporter.checkpoint.folders import GOLDEN_NVIUM, entry, write_raw

from quatrain.exporter.checkpoint.safetensors_header import read_safetensors_header
from quatrain.exporter.errors import CheckpointError


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_safetensors_header(path)
    assert str(path) in caught.value.asked
    return caught.value.found


def test_golden_file_agrees_with_the_safetensors_library() -> None:
    path = GOLDEN_NVIUM / "model.safetensors"
    tensors = read_safetensors_header(path)
    raw = path.read_bytes()
    with safe_open(path, "pt") as file:
        assert set(tensors) == set(file.keys())
        for name, tensor in tensors.items():
            stored = file.get_tensor(name)
            assert tensor.dtype == "BF16"
            assert tensor.shape == tuple(stored.shape)
            assert (tensor.file, tensor.stored_name) == (path, name)
            piece = raw[tensor.offset : tensor.offset + tensor.nbytes]
            assert piece == stored.view(dtype=torch.uint8).numpy().tobytes()


def test_scalars_empty_tensors_and_metadata(tmp_path: Path) -> None:
    save_file({"s": np.array(3.0, np.float32), "e": np.zeros((0, 4), np.float32)}, tmp_path / "f")
    tensors = read_safetensors_header(tmp_path / "f")
    assert tensors["s"].shape == () and float(tensors["s"].read()) == 3.0
    assert tensors["e"].shape == (0, 4) and tensors["e"].read().shape == (0, 4)


def test_every_dtype_of_the_library_is_known(tmp_path: Path) -> None:
    path = write_raw(
        tmp_path / "f", {"a": entry(0, 3, [6], "F4"), "b": entry(3, 4, [1], "I8")}, b"1234"
    )
    assert read_safetensors_header(path)["a"].nbytes == 3


@pytest.mark.parametrize(
    ("header", "data", "found"),
    [
        ({"a": entry(0, 8)}, b"1234", "tensor a ends at byte"),
        ({"a": entry(0, 4)}, b"12345", "1 bytes after the last tensor"),
        ({"a": entry(0, 4), "b": entry(8, 12)}, bytes(12), "a hole of 4 bytes before tensor b"),
        ({"a": entry(4, 8)}, bytes(8), "a hole of 4 bytes before tensor a"),
        ({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12), "tensor b overlaps tensor a"),
        ({"a": entry(-4, 0, [1])}, bytes(4), "tensor a has the data_offsets [-4, 0]"),
        ({"a": entry(4, 0, [1])}, bytes(4), "tensor a has the data_offsets [4, 0]"),
        ({"a": {**entry(0, 4), "data_offsets": [0]}}, bytes(4), "the data_offsets [0]"),
        ({"a": {**entry(0, 4), "data_offsets": [0.0, 4.0]}}, bytes(4), "data_offsets [0.0, 4.0]"),
        ({"a": entry(0, 4, [2])}, bytes(4), "tensor a of shape [2] and dtype F32 needs 8 bytes"),
        ({"a": entry(0, 1, [1], "F4")}, bytes(1), "needs 0.5 bytes"),
        ({"a": entry(0, 4, [-1])}, bytes(4), "tensor a has the shape [-1]"),
        ({"a": entry(0, 4, [True])}, bytes(4), "tensor a has the shape [True]"),
        ({"a": entry(0, 4, dtype="F3")}, bytes(4), "tensor a has the unknown dtype 'F3'"),
        ({"a": {**entry(0, 4), "dtype": [1]}}, bytes(4), "tensor a has the unknown dtype [1]"),
        ({"a": 5}, b"", "the entry of tensor a is not an object"),
        ('{"a": 1, "a": 2}', b"", "the key 'a' occurs twice"),
        ("[1]", b"", "the header is not valid: it holds a JSON list, not an object"),
        ("{nonsense", b"", "the header is not valid: Expecting property name"),
        ("[" * 100_000, b"", "the header is not valid: it is nested too deeply"),
    ],
)
def test_broken_header(tmp_path: Path, header: object, data: bytes, found: str) -> None:
    assert found in refusal(write_raw(tmp_path / "broken.safetensors", header, data))


def test_truncated_file(tmp_path: Path) -> None:
    whole = (GOLDEN_NVIUM / "model.safetensors").read_bytes()
    path = tmp_path / "model.safetensors"
    for size, found in [
        (0, "only 0 bytes, too few for a header"),
        (7, "only 7 bytes"),
        (100, "a header of 7896 bytes in a file of 100 bytes"),
        (len(whole) - 1, f"the file has {len(whole) - 1}"),
    ]:
        path.write_bytes(whole[:size])
        assert found in refusal(path)


def test_header_length_is_capped_before_reading(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "f", "{}", length=100_000_001)
    assert "a header of 100000001 bytes is announced; the format allows 100000000" in refusal(path)


def test_git_lfs_pointer_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    with pytest.raises(CheckpointError, match="git lfs pull") as caught:
        read_safetensors_header(path)
    assert "Git LFS pointer" in caught.value.found


def test_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    assert "Is a directory" in refusal(tmp_path)
