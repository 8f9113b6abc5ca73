"""The pickle of a torch.save file: its code never runs; damaged and hostile ones are refused."""

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.exporter.checkpoint.torch_files import refusal, save, with_pickle

from quatrain.exporter.checkpoint import torch_archive
from quatrain.exporter.checkpoint.torch_archive import read_torch_tensors
from quatrain.exporter.errors import CheckpointError


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
