"""The pickle inside a file of torch.save, read without running any of it.

A pickle is a program: it names functions and calls them. Here the few names that tensors need
(torch/_utils.py, torch/serialization.py) stand for inert objects, and any other ends the reading.
"""

import io
import pickle
import pickletools
import re
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from quatrain.exporter.errors import CheckpointError

__all__ = ["PickledStorage", "PickledTensor", "read_pickle"]

_ORDERED_DICT = "collections.OrderedDict"
_TENSOR = "torch._utils._rebuild_tensor_v2"
_PARAMETER = "torch._utils._rebuild_parameter"
# torch.FloatStorage and its like, torch.storage.UntypedStorage, and dtypes: named, never called.
_TYPES = re.compile(
    r"torch\.([A-Z][A-Za-z0-9]*Storage|storage\.(Untyped|Typed)Storage|b?float[0-9]+|u?int[0-9]+|bool"
    r"|complex[0-9]+|float8_[a-z0-9]+)"
)
# What the interpreter of pickles raises when the program is not a whole one.
_DAMAGE = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class PickledStorage:
    """The elements that tensors are views of; `type_name` is torch.FloatStorage, say.

    `key` names the entry of the archive that holds them.
    """

    type_name: str
    key: str
    num_elements: int


@dataclass(frozen=True, slots=True)
class PickledTensor:
    """A view of a storage; offset and strides count elements.

    Nothing the pickle says has been checked, not even the Python types.
    """

    storage: PickledStorage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_pickle(data: bytes, path: Path) -> object:
    """The object of a pickle: plain data, with `PickledTensor` in the place of tensors.

    Raises:
        CheckpointError: The pickle asks for anything else, or is damaged.
    """
    try:
        _check_memo(data)
        return _TensorUnpickler(data, path).load()
    except _DAMAGE as error:
        raise CheckpointError(
            f"the pickle in {path}",
            f"it is damaged: {error or type(error).__name__}",
            "fetch the file again; it was cut short or altered",
        ) from error


class _Name:
    """Stands for a function or a type of torch; knows how to stand in for three of them."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *arguments: object) -> object:
        if self.name == _ORDERED_DICT:
            return OrderedDict(*arguments)
        if self.name == _TENSOR:
            return PickledTensor(*arguments[:4])  # type: ignore[arg-type]
        if self.name == _PARAMETER:
            return arguments[0]
        raise pickle.UnpicklingError(f"{self.name} is called")


class _TensorUnpickler(pickle.Unpickler):
    def __init__(self, data: bytes, path: Path) -> None:
        super().__init__(io.BytesIO(data))
        self._path = path

    def find_class(self, module: str, name: str) -> object:
        full = f"{module}.{name}"
        if full in (_ORDERED_DICT, _TENSOR, _PARAMETER) or _TYPES.fullmatch(full):
            return _Name(full)
        raise CheckpointError(
            f"the tensors of {self._path}",
            f"a pickle with code in it: it asks for {full}, which no tensor needs, and which was "
            "not loaded",
            "do not load this file with torch either, unless you trust its source; ask for one "
            'with plain data only: torch.save({"model": model.state_dict()}, path)',
        )

    def persistent_load(self, pid: object) -> object:
        match pid:
            case ("storage", _Name(name=name), str(key), _, int(num_elements)):
                return PickledStorage(name, key, num_elements)
        raise pickle.UnpicklingError("an unknown persistent id")


def _check_memo(data: bytes) -> None:
    """Refuse places in the pickle's memory that no real one needs: room is made for all below."""
    for opcode, argument, _ in pickletools.genops(data):
        if "PUT" in opcode.name and isinstance(argument, int) and argument > len(data):
            raise pickle.UnpicklingError(f"a memo of {argument} entries")
