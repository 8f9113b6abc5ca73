"""The NVIDIA GPUs of this machine, asked of the driver itself: no framework is imported."""

import ctypes
from dataclasses import dataclass
from pathlib import Path

__all__ = ["LocalGpu", "LocalGpus", "find_gpus"]

# CUdevice_attribute values of cuda.h
_COMPUTE_CAPABILITY_MAJOR = 75
_COMPUTE_CAPABILITY_MINOR = 76


@dataclass(frozen=True, slots=True)
class LocalGpu:
    """One GPU as CUDA numbers it: its name, compute capability ("8.6") and memory in bytes."""

    index: int
    name: str
    sm: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class LocalGpus:
    """The GPUs that CUDA sees here; where there are none, `problem` says why."""

    gpus: tuple[LocalGpu, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    problem: str | None = None


def find_gpus() -> LocalGpus:
    """Ask the driver for its GPUs (CUDA_VISIBLE_DEVICES applies)."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return LocalGpus(problem="no NVIDIA driver here (libcuda.so.1 is not found)")
    driver = _read_driver_version()
    status = cuda.cuInit(0)
    if status:
        return LocalGpus(driver=driver, problem=f"the NVIDIA driver sees no GPU (CUDA {status})")
    version = ctypes.c_int()
    count = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    cuda.cuDeviceGetCount(ctypes.byref(count))
    return LocalGpus(
        gpus=tuple(_describe(cuda, index) for index in range(count.value)),
        driver=driver,
        cuda=f"{version.value // 1000}.{version.value % 1000 // 10}",
        problem=None if count.value else "the NVIDIA driver sees no GPU",
    )


def _describe(cuda: ctypes.CDLL, index: int) -> LocalGpu:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    memory = ctypes.c_size_t()
    cuda.cuDeviceGet(ctypes.byref(device), index)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), _COMPUTE_CAPABILITY_MAJOR, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), _COMPUTE_CAPABILITY_MINOR, device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    return LocalGpu(index, name.value.decode(), f"{major.value}.{minor.value}", memory.value)


def _read_driver_version() -> str | None:
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        return None
