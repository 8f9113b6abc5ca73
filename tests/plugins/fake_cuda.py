"""A stand-in for `cuda.bindings.driver` that is strict, and runs launches in Triton's interpreter.

"Device memory" is that of torch tensors on the CPU, at their own addresses.
"""

import ctypes
import struct
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import torch
from tests.plugins.interpreter import TRITON_DTYPES, launch_variant

from quatrain.plugins.cubin import Cubin

STREAM = 77
_FORMATS = {"i32": "<i", "i64": "<q", "fp32": "<f"}


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_NOT_FOUND = 500


OK = Status.CUDA_SUCCESS


class FakeCuda:
    """One device of SM `sm` that knows the kernels in `cubins` and the memory in `tensors`."""

    def __init__(self, sm: str, cubins: list[Cubin]) -> None:
        major, _, minor = sm.partition(".")
        self.attributes = {"MAJOR": int(major), "MINOR": int(minor), "COUNT": 4}
        self.cubins = {cubin.image: cubin for cubin in cubins}
        self.tensors: list[torch.Tensor] = []
        self.loads: list[str] = []
        self.launches: list[tuple[str, tuple[int, ...], int]] = []
        self.max_shared: dict[str, int] = {}
        names = ("COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR", "MULTIPROCESSOR_COUNT")
        self.CUdevice_attribute = SimpleNamespace(
            **{f"CU_DEVICE_ATTRIBUTE_{name}": name.rpartition("_")[2] for name in names}
        )
        self.CUfunction_attribute = SimpleNamespace(
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared"
        )

    def cuCtxGetDevice(self) -> tuple[Any, ...]:  # noqa: N802
        return OK, 0

    def cuDeviceGetAttribute(self, kind: str, device: int) -> tuple[Any, ...]:  # noqa: N802
        assert device == 0
        return OK, self.attributes[kind]

    def cuLibraryLoadData(self, image: bytes, *options: Any) -> tuple[Any, ...]:  # noqa: N802
        assert options == ([], [], 0, [], [], 0)
        if image not in self.cubins:
            return Status.CUDA_ERROR_INVALID_VALUE, None
        self.loads.append(self.cubins[image].entry)
        return OK, self.cubins[image]

    def cuLibraryGetKernel(self, library: Cubin, name: bytes) -> tuple[Any, ...]:  # noqa: N802
        is_there = library.entry.encode() == name
        return (OK, library) if is_there else (Status.CUDA_ERROR_NOT_FOUND, None)

    def cuKernelGetFunction(self, kernel: Cubin) -> tuple[Any, ...]:  # noqa: N802
        return OK, kernel

    def cuFuncSetAttribute(self, function: Cubin, kind: str, value: int) -> tuple[Any]:  # noqa: N802
        assert kind == "shared"
        self.max_shared[function.entry] = value
        return (OK,)

    def cuLaunchKernel(self, function: Cubin, *rest: Any) -> tuple[Any]:  # noqa: N802
        *sizes, shared, stream, parameters, extra = rest
        grid, block = tuple(sizes[:3]), tuple(sizes[3:])
        assert block == (function.threads, 1, 1) and extra == 0 and stream == STREAM
        if shared > self.max_shared.get(function.entry, 48 * 1024):
            return (Status.CUDA_ERROR_INVALID_VALUE,)
        assert shared == function.shared_bytes
        self.launches.append((function.entry, grid, stream))
        launch_variant(function.variant, grid, self._read_arguments(function, parameters))
        return (OK,)

    def _read_arguments(self, function: Cubin, parameters: int) -> list[Any]:
        """What the array of pointers points to; two more are the scratch memory, which is none."""
        types = function.variant.types
        count = len(types) + 2
        slots = (ctypes.c_uint64 * count).from_address(parameters)
        values = [ctypes.string_at(slot, 8) for slot in slots]
        assert values[-2:] == [bytes(8)] * 2
        arguments: list[Any] = []
        for value, kind in zip(values, types, strict=False):
            base = kind.partition(":")[0]
            if base in _FORMATS:
                size = struct.calcsize(_FORMATS[base])
                arguments += struct.unpack(_FORMATS[base], value[:size])
            else:
                arguments.append(self._find(int.from_bytes(value, "little"), base))
        return arguments

    def _find(self, address: int, kind: str) -> torch.Tensor:
        """The rest of the tensor that an address points into."""
        for tensor in self.tensors:
            memory = tensor.view(-1).view(torch.uint8)
            offset = address - memory.data_ptr()
            if 0 <= offset < memory.numel():
                return memory[offset:].view(TRITON_DTYPES[kind.removeprefix("*")])
        raise AssertionError(f"nothing lies at {address:#x}")
