"""The GPUs engines are built for, and which TensorRT their vendor supports on each."""

from dataclasses import dataclass
from typing import Literal

from quatrain.exporter.errors import BuildError

__all__ = ["TARGETS", "Flavour", "Memory", "Target", "find_target"]

Flavour = Literal["tensorrt-rtx", "tensorrt"]


@dataclass(frozen=True, slots=True)
class Memory:
    """One memory size a GPU is sold with: GiB, and its bandwidth in GB/s (10^9 bytes)."""

    gib: int
    bandwidth_gb_s: int


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU an engine can be built for; `sm` is its compute capability, `title` its full name."""

    name: str
    title: str
    sm: str
    memory: tuple[Memory, ...]
    supported_flavours: tuple[Flavour, ...]

    def is_supported(self, flavour: Flavour) -> bool:
        """Whether the vendor lists this GPU for that TensorRT."""
        return flavour in self.supported_flavours

    def support_note(self, flavour: Flavour) -> str | None:
        """What to know before building with a TensorRT not supported there; else None."""
        if self.is_supported(flavour):
            return None
        return (
            f"TensorRT-RTX builds for compute capability {self.sm}, but NVIDIA's support matrix "
            f"does not list it; the supported way for {self.title} is classic TensorRT, "
            f"built on that GPU"
        )


# Memory and bandwidth: NVIDIA's data sheets "A100 Tensor Core GPU" (80 GB: the SXM module; the
# PCIe card has 1,935 GB/s) and "RTX A6000", and its white paper "Ampere GA102 GPU Architecture"
# (RTX 3090). Compute capabilities: NVIDIA's "CUDA GPU Compute Capability". Supported TensorRT:
# the support matrices of TensorRT-RTX 1.0 to 1.5 (7.5, 8.6, 8.9, 12.x) and TensorRT 10.
TARGETS = (
    Target("a100", "NVIDIA A100", "8.0", (Memory(40, 1555), Memory(80, 2039)), ("tensorrt",)),
    Target("a6000", "NVIDIA RTX A6000", "8.6", (Memory(48, 768),), ("tensorrt-rtx", "tensorrt")),
    Target(
        "rtx3090",
        "NVIDIA GeForce RTX 3090",
        "8.6",
        (Memory(24, 936),),
        ("tensorrt-rtx", "tensorrt"),
    ),
)


def find_target(name: str) -> Target:
    """The target of that name; raises `BuildError` that lists the targets there are."""
    for target in TARGETS:
        if target.name == name:
            return target
    raise BuildError(
        f"an engine for the target {name!r}",
        "no target of that name",
        "choose from " + ", ".join(f"{target.name} ({target.title})" for target in TARGETS),
    )
