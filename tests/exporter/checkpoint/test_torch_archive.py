"""Files of torch.save: tensors by their place, and archives that are damaged."""

import io
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.exporter.checkpoint.torch_files import refusal, rewrite, save

from quatrain.exporter.checkpoint.torch_archive import read_torch_tensors
from quatrain.exporter.errors import CheckpointError

DTYPES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}


# --- tensors ---


@pytest.mark.parametrize("dtype", DTYPES)
def test_places_and_dtypes(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.arange(12).reshape(3, 4).to(dtype)
    path = save(tmp_path / "x.pt", a=torch.ones(5), b=values)
    tensor = read_torch_tensors(path, "model")["b"]
    assert (tensor.name, tensor.stored_name, tensor.file) == ("b", "b", path)
    assert (tensor.dtype, tensor.shape, tensor.nbytes) == (DTYPES[dtype], (3, 4), values.nbytes)
    stored = path.read_bytes()[tensor.offset : tensor.offset + tensor.nbytes]
    assert stored == values.view(torch.uint8).numpy().tobytes()
    assert b"".join(map(bytes, tensor.chunks(7))) == stored


def test_views_parameters_and_shapes(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(6, 4)
    views = {
        "rows": base[2:4],
        "same": base,
        "row": base[5],
        "element": base[3, 2],
        "one_column": base[:, :1][1:2],  # [1, 1]: its strides mean nothing
        "empty": base[:0, :2],
        "parameter": torch.nn.Parameter(base[:1]),
        "scalar": torch.tensor(7.0),
    }
    tensors = read_torch_tensors(save(tmp_path / "x.pt", **views), "model")
    assert list(tensors) == list(views)
    assert tensors["rows"].offset == tensors["same"].offset + 2 * 4 * 4
    for name, view in views.items():
        np.testing.assert_array_equal(tensors[name].read(), view.detach().numpy())


def test_a_whole_module_with_its_optimizer(tmp_path: Path) -> None:
    """The state dict of a module is an OrderedDict with attributes, a scheduler's plain data."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "lr_scheduler_state": scheduler.state_dict(),
        "training_steps": 1,
        "dtype": torch.float32,
    }
    torch.save(state, tmp_path / "x.pt")
    tensors = read_torch_tensors(tmp_path / "x.pt", "model")
    assert tensors.keys() == model.state_dict().keys()
    np.testing.assert_array_equal(tensors["0.weight"].read(), model[0].weight.detach().numpy())


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol(tmp_path: Path, protocol: int) -> None:
    torch.save({"model": OrderedDict(a=torch.ones(3))}, tmp_path / "x.pt", pickle_protocol=protocol)
    assert read_torch_tensors(tmp_path / "x.pt", "model")["a"].shape == (3,)


def test_a_file_renamed_after_it_was_written(tmp_path: Path) -> None:
    """The folder inside has the file's first name."""
    save(tmp_path / "step-7.pt", a=torch.ones(3)).rename(tmp_path / "model.pt")
    tensor = read_torch_tensors(tmp_path / "model.pt", "model")["a"]
    np.testing.assert_array_equal(tensor.read(), [1, 1, 1])


# --- tensors that cannot be referred to ---


def test_a_transposed_tensor(tmp_path: Path) -> None:
    error = refusal(save(tmp_path / "x.pt", w=torch.ones(3, 4).T))
    assert "tensor model.w of shape [4, 3] has the strides [1, 4]" in error.found
    assert "contiguous" in error.fix and "torch.save" in error.fix


@pytest.mark.parametrize("value", [torch.ones(6)[::2], torch.ones(1).expand(3)])
def test_other_strides(tmp_path: Path, value: torch.Tensor) -> None:
    assert "strides" in refusal(save(tmp_path / "x.pt", w=value)).found


def test_an_unknown_storage(tmp_path: Path) -> None:
    error = refusal(save(tmp_path / "x.pt", w=torch.ones(2, dtype=torch.complex128)))
    assert "model.w is in a torch.ComplexDoubleStorage" in error.found


def test_what_is_no_tensor(tmp_path: Path) -> None:
    assert "model.w is no tensor, but a str" in refusal(save(tmp_path / "x.pt", w="text")).found


@pytest.mark.parametrize(
    ("saved", "found"),
    [
        ({"state_dict": {}, "epoch": 3}, "the file holds a dict of state_dict, epoch"),
        ({"model": [1]}, "the file holds a dict of model"),
        ({}, "the file holds a dict of nothing"),
        ([1, 2], "the file holds no dict"),
        (torch.ones(2), "the file holds no dict"),
    ],
)
def test_no_state_dict(tmp_path: Path, saved: object, found: str) -> None:
    torch.save(saved, tmp_path / "x.pt")
    error = refusal(tmp_path / "x.pt")
    assert error.found.endswith(found) and "no state dict under 'model'" in error.found


# --- files ---


def test_the_legacy_format(tmp_path: Path) -> None:
    saved = {"model": {"a": torch.ones(2)}}
    torch.save(saved, tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    error = refusal(tmp_path / "x.pt")
    assert error.found == "no zip archive, but the legacy format of torch.save"
    assert "write it again with torch.save" in error.fix


def test_files_that_are_none_of_torchs(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    for data, found in [
        (b"", "no zip archive, but nothing from torch.save"),
        (b"text", "no zip archive, but nothing from torch.save"),
        (b"PK\x03\x04", "the zip archive is damaged"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
    ]:
        path.write_bytes(data)
        assert found in refusal(path).found
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a/b", b"c")
    path.write_bytes(buffer.getvalue())
    assert "0 entries data.pkl" in refusal(path).found


@pytest.mark.parametrize("cut", [1, 100, 1000])
def test_a_file_that_was_cut_short(tmp_path: Path, cut: int) -> None:
    path = save(tmp_path / "x.pt", a=torch.ones(300))
    path.write_bytes(path.read_bytes()[:-cut])
    error = refusal(path)
    assert "damaged" in error.found and "fetch the file again" in error.fix


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file"):
        read_torch_tensors(tmp_path / "x.pt", "model")


def test_compressed_entries(tmp_path: Path) -> None:
    path = save(tmp_path / "x.pt", a=torch.ones(300))
    rewrite(path, lambda _, data: data, compression=zipfile.ZIP_DEFLATED)
    error = refusal(path)
    assert "is compressed" in error.found and "write it again with torch.save" in error.fix


def test_the_other_byte_order(tmp_path: Path) -> None:
    path = save(tmp_path / "x.pt", a=torch.ones(3))
    rewrite(path, lambda name, data: b"big" if name.endswith("byteorder") else data)
    assert "b'big' byte order" in refusal(path).found


def test_without_a_byte_order_it_is_little(tmp_path: Path) -> None:
    """Older versions of torch wrote none."""
    path = save(tmp_path / "x.pt", a=torch.ones(3))
    rewrite(path, lambda name, data: None if name.endswith("byteorder") else data)
    np.testing.assert_array_equal(read_torch_tensors(path, "model")["a"].read(), [1, 1, 1])


def test_two_entries_of_one_name(tmp_path: Path) -> None:
    path = save(tmp_path / "x.pt", a=torch.ones(3))
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("x/data/0", bytes(12))
    assert "entries of the same name" in refusal(path).found


def test_an_entry_that_is_not_where_the_directory_says(tmp_path: Path) -> None:
    path = save(tmp_path / "x.pt", a=torch.ones(3))
    with zipfile.ZipFile(path) as archive:
        begin = archive.getinfo("x/data/0").header_offset
    data = bytearray(path.read_bytes())
    data[begin : begin + 4] = b"oops"
    path.write_bytes(data)
    assert "x/data/0 is not where the directory says" in refusal(path).found
    data[begin : begin + 4] = b"PK\x03\x04"
    data[begin + 28 : begin + 30] = b"\xff\xff"  # an extra field beyond the end
    path.write_bytes(data)
    assert "x/data/0 is not where the directory says" in refusal(path).found
