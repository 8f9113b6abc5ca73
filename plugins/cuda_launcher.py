"""Launches compiled kernels through CUDA's driver, as cuda-python has it.

Written against cuda-python 12.9 and tested with a stand-in for it; not yet run on a GPU by us.
"""

import ctypes
import functools
import hashlib
import importlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quatrain.plugins.cubin import Cubin
from quatrain.plugins.definition import UnsupportedError
from quatrain.plugins.launch import KernelVariant, Launch, Pointer

__all__ = [
    "CudaDriver",
    "LoadedKernel",
    "PackedLaunch",
    "PreparedLaunch",
    "open_driver",
    "pack_launch",
]

# A block may have more dynamic shared memory than this only if its kernel asks beforehand.
_STATIC_LIMIT = 48 * 1024
# Formats of `struct` for the types of numbers that a kernel takes.
_FORMATS = {"i32": "<i", "i64": "<q", "fp32": "<f"}
_SLOT_BYTES = 8


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """A kernel on the current device."""

    function: Any
    threads: int
    shared_bytes: int


class CudaDriver:
    """The current CUDA device and the kernels loaded on it: equal ones once.

    Args:
        module: `cuda.bindings.driver`.
    """

    def __init__(self, module: Any) -> None:
        self._cuda = module
        self._functions: dict[tuple[int, bytes, str], Any] = {}
        self._libraries: list[Any] = []  # as long as the process lives: functions point to them

    @property
    def sm(self) -> str:
        """Compute capability of the current device, as in "8.6"."""
        name = "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_"
        return f"{self._ask_device(f'{name}MAJOR')}.{self._ask_device(f'{name}MINOR')}"

    @property
    def num_multiprocessors(self) -> int:
        """Of the current device."""
        return self._ask_device("CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT")

    def load(self, cubin: Cubin) -> LoadedKernel:
        """The kernel, loaded if it is not yet."""
        device = int(self._check(self._cuda.cuCtxGetDevice()))
        key = device, hashlib.sha256(cubin.image).digest(), cubin.entry
        if key not in self._functions:
            self._functions[key] = self._load(cubin)
        return LoadedKernel(self._functions[key], cubin.threads, cubin.shared_bytes)

    def launch(
        self, kernel: LoadedKernel, grid: tuple[int, int, int], parameters: int, stream: int
    ) -> None:
        """Queue one launch; `parameters` is the address of an array of pointers to arguments."""
        block = kernel.threads, 1, 1
        shared = kernel.shared_bytes
        call = self._cuda.cuLaunchKernel
        self._check(call(kernel.function, *grid, *block, shared, stream, parameters, 0))

    def _load(self, cubin: Cubin) -> Any:
        cuda = self._cuda
        library = self._check(cuda.cuLibraryLoadData(cubin.image, [], [], 0, [], [], 0))
        self._libraries.append(library)
        kernel = self._check(cuda.cuLibraryGetKernel(library, cubin.entry.encode()))
        function = self._check(cuda.cuKernelGetFunction(kernel))
        if cubin.shared_bytes > _STATIC_LIMIT:
            kind = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._check(cuda.cuFuncSetAttribute(function, kind, cubin.shared_bytes))
        return function

    def _ask_device(self, attribute: str) -> int:
        device = self._check(self._cuda.cuCtxGetDevice())
        kind = getattr(self._cuda.CUdevice_attribute, attribute)
        return int(self._check(self._cuda.cuDeviceGetAttribute(kind, device)))

    def _check(self, result: tuple[Any, ...]) -> Any:
        """The value of a call, which returns its status first."""
        status, *values = result
        if status:
            raise RuntimeError(f"CUDA: {status.name}")
        return values[0] if values else None


@functools.cache
def open_driver() -> CudaDriver:
    """The driver of this process; `UnsupportedError` where cuda-python is not installed."""
    try:
        module = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise UnsupportedError(
            "launching kernels needs cuda-python: pip install 'quatrain[gpu]'"
        ) from error
    return CudaDriver(module)


@dataclass(frozen=True, slots=True)
class PackedLaunch:
    """A launch as the driver takes it, but for its kernel and the addresses of tensors.

    Layers with equal plans share it.
    """

    variant: KernelVariant
    grid: tuple[int, int, int]
    numbers: bytes
    """A slot of 8 bytes for each argument: numbers as the kernel takes them, 0 for pointers."""
    pointers: tuple[tuple[int, int, int, int], ...]
    """Slot, tensor, offset and alignment of each pointer."""


def pack_launch(launch: Launch) -> PackedLaunch:
    """Settle everything that is the same for all layers."""
    numbers, pointers = bytearray(), []
    kinds = launch.variant.types
    for slot, (argument, kind) in enumerate(zip(launch.arguments, kinds, strict=True)):
        base, _, promise = kind.partition(":")
        value = b""
        if isinstance(argument, Pointer):
            alignment = int(promise or 1)
            pointers.append((slot, argument.tensor, argument.offset_bytes, alignment))
        else:
            value = struct.pack(_FORMATS[base], argument)
        numbers += value.ljust(_SLOT_BYTES, b"\0")
    return PackedLaunch(_share(launch.variant), launch.grid, bytes(numbers), tuple(pointers))


@functools.cache
def _share(variant: KernelVariant) -> KernelVariant:
    """Of equal variants always the same: identity is found faster than equality."""
    return variant


class PreparedLaunch:
    """One layer's launch of a kernel, and the memory that the driver reads its arguments from.

    What a new shape changes is written there: a growing mask brings one every few tokens.
    """

    def __init__(self, driver: CudaDriver, kernel: LoadedKernel, launch: PackedLaunch) -> None:
        self._driver = driver
        self._kernel = kernel
        # Triton's kernels end with two pointers to scratch memory, which ours do not use: 0.
        count = len(launch.variant.types) + 2
        self._slots = (ctypes.c_uint64 * count)()
        self._bytes = memoryview(self._slots).cast("B")
        start = ctypes.addressof(self._slots)
        self._array = (ctypes.c_uint64 * count)(*(start + _SLOT_BYTES * i for i in range(count)))
        self._parameters = ctypes.addressof(self._array)
        self.settle(launch)

    def settle(self, launch: PackedLaunch) -> None:
        """From now on run this launch, of the same kernel."""
        self._launch = launch
        self._bytes[: len(launch.numbers)] = launch.numbers

    def run(self, addresses: Sequence[int], stream: int) -> None:
        """Queue it on a stream; the workspace is the last of `addresses`.

        CUDA copies the arguments before it returns, so they may change at once.
        """
        slots = self._slots
        for slot, tensor, offset, alignment in self._launch.pointers:
            address = addresses[tensor] + offset
            if address % alignment:
                variant = self._launch.variant
                raise UnsupportedError(
                    f"{variant.operator}.{variant.kernel} takes pointers aligned to {alignment} "
                    f"bytes; its argument {slot} lies at {address:#x}"
                )
            slots[slot] = address
        self._driver.launch(self._kernel, self._launch.grid, self._parameters, stream)
