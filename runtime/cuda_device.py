"""The GPU through cuda-python: device and pinned memory, copies, one stream."""

import ctypes
import weakref
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quatrain.runtime.errors import EngineError

__all__ = ["CudaDevice", "Device", "DeviceMemory", "PinnedMemory"]


class Device(Protocol):
    """What a session needs of a GPU. Sizes are in bytes, addresses are integers, and copies are
    queued on `stream`."""

    @property
    def stream(self) -> int:
        """Handle of the one stream that everything runs in."""
        ...

    def allocate(self, num_bytes: int) -> int:
        """Zeroed device memory; raises `MemoryError` if there is none left."""
        ...

    def allocate_pinned(self, num_bytes: int) -> int:
        """Page-locked host memory."""
        ...

    def free(self, address: int) -> None:
        """Give back device memory."""
        ...

    def free_pinned(self, address: int) -> None:
        """Give back page-locked memory."""
        ...

    def copy_in(self, device: int, host: int, num_bytes: int) -> None:
        """Queue a copy from host to device."""
        ...

    def copy_out(self, host: int, device: int, num_bytes: int) -> None:
        """Queue a copy from device to host."""
        ...

    def synchronize(self) -> None:
        """Wait until everything queued is done."""
        ...


class CudaDevice:
    """The current CUDA device; raises `EngineError` where there is none.

    Args:
        runtime: The module `cuda.bindings.runtime`.
    """

    def __init__(self, runtime: ModuleType) -> None:
        self._cuda = runtime
        self._out_of_memory = runtime.cudaError_t.cudaErrorMemoryAllocation
        status, count = runtime.cudaGetDeviceCount()
        if status or not count:
            raise EngineError(
                "an NVIDIA GPU",
                f"CUDA finds none ({status.name})",
                "check nvidia-smi, or use backend='onnxruntime'",
            )
        # A blocking stream: it waits for the memsets of `allocate`, which use the default one.
        self.stream = int(self._check(runtime.cudaStreamCreate()))

    @property
    def sm(self) -> str:
        """Compute capability, as in "8.6"."""
        cuda, kind = self._cuda, self._cuda.cudaDeviceAttr
        device = self._check(cuda.cudaGetDevice())
        major, minor = (
            self._check(cuda.cudaDeviceGetAttribute(attribute, device))
            for attribute in (
                kind.cudaDevAttrComputeCapabilityMajor,
                kind.cudaDevAttrComputeCapabilityMinor,
            )
        )
        return f"{major}.{minor}"

    def allocate(self, num_bytes: int) -> int:
        """Zeroed device memory; raises `MemoryError` if there is none left."""
        address = int(self._check(self._cuda.cudaMalloc(num_bytes)))
        self._check(self._cuda.cudaMemset(address, 0, num_bytes))
        return address

    def allocate_pinned(self, num_bytes: int) -> int:
        """Page-locked host memory."""
        return int(self._check(self._cuda.cudaMallocHost(num_bytes)))

    def free(self, address: int) -> None:
        """Give back device memory."""
        self._check(self._cuda.cudaFree(address))

    def free_pinned(self, address: int) -> None:
        """Give back page-locked memory."""
        self._check(self._cuda.cudaFreeHost(address))

    def copy_in(self, device: int, host: int, num_bytes: int) -> None:
        """Queue a copy from host to device."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._check(self._cuda.cudaMemcpyAsync(device, host, num_bytes, kind, self.stream))

    def copy_out(self, host: int, device: int, num_bytes: int) -> None:
        """Queue a copy from device to host."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._check(self._cuda.cudaMemcpyAsync(host, device, num_bytes, kind, self.stream))

    def synchronize(self) -> None:
        """Wait until everything queued is done."""
        self._check(self._cuda.cudaStreamSynchronize(self.stream))

    def _check(self, result: tuple[Any, ...]) -> Any:
        """The value of a call, which returns its status first."""
        status, *values = result
        if status == self._out_of_memory:
            raise MemoryError("the GPU has no memory left")
        if status:
            raise RuntimeError(f"CUDA: {status.name}")
        return values[0] if values else None


class DeviceMemory:
    """Zeroed device memory, freed with this object."""

    def __init__(self, device: Device, num_bytes: int) -> None:
        self.address = device.allocate(num_bytes)
        # Unlike __del__, a finalizer also runs in time when the interpreter shuts down.
        weakref.finalize(self, device.free, self.address)


class PinnedMemory:
    """Page-locked host memory as an array of bytes, freed with this object."""

    def __init__(self, device: Device, num_bytes: int) -> None:
        self.address = device.allocate_pinned(num_bytes)
        weakref.finalize(self, device.free_pinned, self.address)
        memory = (ctypes.c_uint8 * num_bytes).from_address(self.address)
        self.bytes: NDArray[np.uint8] = np.frombuffer(memoryview(memory), np.uint8)
        self.bytes[:] = 0
