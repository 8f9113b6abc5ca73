"""Files of torch.save: tensors by their place, and files that are damaged or hostile."""

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quatrain.exporter.checkpoint import torch_archive
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


def save(path: Path, **tensors: Any) -> Path:
    torch.save({"model": tensors, "optimizer": {}}, path)
    return path


def refusal(path: Path, section: str = "model") -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        read_torch_tensors(path, section)
    assert str(path) in caught.value.asked
    return caught.value


def rewrite(path: Path, change: Callable[[str, bytes], bytes | None], **options: Any) -> Path:
    """Write the zip again with other entries; None drops one."""
    with zipfile.ZipFile(path) as old:
        entries = {info.filename: old.read(info) for info in old.infolist()}
    with zipfile.ZipFile(path, "w", **options) as new:
        for name, data in entries.items():
            changed = change(name, data)
            if changed is not None:
                new.writestr(name, changed)
    return path


def with_pickle(path: Path, data: bytes) -> Path:
    """A torch file with another pickle in it."""
    save(path, a=torch.ones(3))
    return rewrite(path, lambda name, old: data if name.endswith("data.pkl") else old)


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


# --- code ---


class Call:
    """Pickles as a call of any function."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("where", ["model", "optimizer"])
@pytest.mark.parametrize("protocol", [2, 4])
def test_code_is_named_and_never_run(tmp_path: Path, protocol: int, where: str) -> None:
    flag = tmp_path / "flag"
    call = Call(os.mkdir, str(flag))
    saved = {"model": {"a": torch.ones(2)}, where: {"b": call}}
    torch.save(saved, tmp_path / "x.pt", pickle_protocol=protocol)
    error = refusal(tmp_path / "x.pt")
    assert not flag.exists()
    assert f"a pickle with code in it: it asks for {os.mkdir.__module__}.mkdir" in error.found
    assert "do not load this file" in error.fix
    # The same file does run where it is let to: the test would see it.
    torch.load(tmp_path / "x.pt", weights_only=False)
    assert flag.exists()


@pytest.mark.parametrize(
    "name",
    [
        "os system",
        "posix system",
        "builtins eval",
        "__builtin__ eval",
        "builtins getattr",
        "torch load",
        "torch.hub load",
        "torch._utils _rebuild_tensor_v2.__globals__",
        "torch.storage _load_from_bytes",
        "torch storage._load_from_bytes",
        "collections OrderedDict.fromkeys",
        "torch.nn.modules.linear Linear",
        "numpy.core.multiarray scalar",
        "torch FloatStorage.from_file",
        "torch os.system",
    ],
)
@pytest.mark.parametrize("opcode", ["global", "stack_global", "inst"])
def test_names_that_no_tensor_needs(tmp_path: Path, name: str, opcode: str) -> None:
    module, function = name.split(" ")
    program = {
        "global": f"c{module}\n{function}\n)R.".encode(),
        "stack_global": pickle.dumps(module, 2)[:-1]
        + pickle.dumps(function, 2)[2:-1]
        + pickle.STACK_GLOBAL
        + b")R.",
        "inst": f"(i{module}\n{function}\n.".encode(),
    }[opcode]
    error = refusal(with_pickle(tmp_path / "x.pt", program))
    assert f"a pickle with code in it: it asks for {module}.{function}, which" in error.found


@pytest.mark.parametrize(
    "program",
    [
        b"ctorch\nFloatStorage\n(S'a'\ntR.",  # a storage that is called
        b"ccollections\nOrderedDict\n)\x81.",  # __new__ of what only stands for a type
        b"ctorch._utils\n_rebuild_tensor_v2\n(K\x01tR.",
        b"ctorch._utils\n_rebuild_parameter\n)R.",
        b"ctorch._utils\n_rebuild_tensor_v2\n}S'x'\nK\x01sb.",  # attributes of a function
        b"(S'storage'\nI1\ntQ.",
        b"S'storage'\nQ.",
        b"\x82\x01.",  # an extension
        b"r\xff\xff\xff\x0f.",  # a memo with room for 2 ** 28 objects
        b"h\x05.",
        b"}(]K\x01u.",  # a list as a key
        b"",
        b"garbage",
        b"\x80\x09.",
        b"(" * 10,
    ],
)
def test_damaged_pickles(tmp_path: Path, program: bytes) -> None:
    error = refusal(with_pickle(tmp_path / "x.pt", program))
    assert error.found.startswith("it is damaged") and "fetch the file again" in error.fix


def test_every_byte_of_the_pickle_may_be_wrong(tmp_path: Path) -> None:
    """Whatever a flipped byte does to the program, it ends in our error or in a state dict."""
    path = save(tmp_path / "x.pt", a=torch.ones(2, 3), b=torch.nn.Parameter(torch.ones(3)))
    with zipfile.ZipFile(path) as archive:
        data = next(archive.read(n) for n in archive.namelist() if n.endswith("data.pkl"))
    refused = 0
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 0x01 if place % 2 else 0xFF
        try:
            read_torch_tensors(with_pickle(tmp_path / "y.pt", bytes(changed)), "model")
        except CheckpointError:
            refused += 1
    assert refused > len(data) // 2


TENSOR = (
    b"}S'model'\n}S'w'\nctorch._utils\n_rebuild_tensor_v2\n"
    b"((S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\nI3\ntQ%s\x89NtRss."
)


@pytest.mark.parametrize(
    ("rest", "found"),
    [
        (b"I0\n(I3\nt(I1\nt", None),
        (b"I1\n(I2\nt(I1\nt", None),
        (b"I1\n(I3\nt(I1\nt", "tensor model.w reaches beyond its storage of 3"),
        (b"I-1\n(I3\nt(I1\nt", "no shape, strides and place"),
        (b"I0\n(I-3\nt(I1\nt", "no shape, strides and place"),
        (b"I0\n(I3\nt(I1\nI1\nt", "no shape, strides and place"),
        (b"N(I3\nt(I1\nt", "no shape, strides and place"),
        (b"I0\nI3\n(I1\nt", "no shape, strides and place"),
        (b"I0\n(I01\nt(I1\nt", "no shape, strides and place"),  # I01 is True
        (b"I0\n(F3\nt(I1\nt", "no shape, strides and place"),
    ],
)
def test_what_a_pickle_says_of_a_tensor(tmp_path: Path, rest: bytes, found: str | None) -> None:
    path = with_pickle(tmp_path / "x.pt", TENSOR % rest)
    if found is None:
        assert read_torch_tensors(path, "model")["w"].dtype == "F32"
    else:
        assert found in refusal(path).found


@pytest.mark.parametrize(
    ("old", "new"), [(b"S'0'", b"S'9'"), (b"I3\ntQ", b"I4\ntQ"), (b"FloatS", b"HalfS")]
)
def test_a_storage_that_is_not_there_or_of_another_size(
    tmp_path: Path, old: bytes, new: bytes
) -> None:
    program = (TENSOR % b"I0\n(I3\nt(I1\nt").replace(old, new)
    found = refusal(with_pickle(tmp_path / "x.pt", program)).found
    assert found.startswith("tensor model.w needs data/")


# 6000 digits are more than Python prints; the opcode is LONG4.
HUGE = b"\x8b" + (3000).to_bytes(4, "little") + pickle.encode_long(10**6000).ljust(3000, b"\0")


@pytest.mark.parametrize("part", ["shape", "stride", "offset", "storage"])
def test_numbers_too_long_to_be_printed(tmp_path: Path, part: str) -> None:
    rest = b"I0\n(I3\nt(I1\nt"
    if part == "storage":
        program = (TENSOR % rest).replace(b"I3\ntQ", HUGE + b"tQ")
    else:
        old = {"shape": b"(I3\nt(", "stride": b"(I1\nt", "offset": b"I0\n"}[part]
        program = TENSOR % rest.replace(old, old.replace(old.strip(b"(t"), HUGE), 1)
    assert "no shape, strides and place" in refusal(with_pickle(tmp_path / "x.pt", program)).found


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (b"N" + b"\x85" * 3000, "no text but tuple"),  # deeper than Python prints
        (HUGE, "no text but int"),
        (b"N", "no text but NoneType"),
        (b"S'" + b"w" * 3000 + b"'\n", "very long"),
    ],
)
def test_names_that_are_none(tmp_path: Path, name: bytes, found: str) -> None:
    program = (TENSOR % b"I0\n(I3\nt(I1\nt").replace(b"S'w'\n", name)
    path = with_pickle(tmp_path / "x.pt", program)
    assert refusal(path).found == f"a tensor whose name is {found}"
    refusal(path, "another section")


def test_keys_that_are_not_printed(tmp_path: Path) -> None:
    program = b"}(" + HUGE + b"NN" + b"\x85" * 3000 + b"NS'a'\nNu."
    found = refusal(with_pickle(tmp_path / "x.pt", program)).found
    assert found == "no state dict under 'model': the file holds a dict of a"


def test_a_storage_that_is_none(tmp_path: Path) -> None:
    program = (TENSOR % b"I0\n(I3\nt(I1\nt").replace(
        b"(S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\nI3\ntQ", b"S'storage'\n"
    )
    assert "no shape, strides and place" in refusal(with_pickle(tmp_path / "x.pt", program)).found


def test_a_huge_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_archive, "MAX_PICKLE_BYTES", 50)
    assert "a pickle of" in refusal(save(tmp_path / "x.pt", a=torch.ones(2))).found


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
