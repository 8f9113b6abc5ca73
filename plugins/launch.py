"""Which kernels an operator runs, where and over what: said without Triton, TensorRT or CUDA.

An operator plans its launches from shapes alone. The plugin turns a plan into CUDA launches, the
tests into runs of Triton's interpreter, `make gpu-check` into Triton's own launches: one plan, the
same grids and arguments everywhere.
"""

from dataclasses import dataclass
from typing import Literal

__all__ = ["WORKSPACE", "Constant", "KernelVariant", "Launch", "Pointer", "name_kernel_module"]

Constant = int | float | bool | str

WORKSPACE = -1
"""The tensor number of the scratch memory."""


@dataclass(frozen=True, slots=True)
class KernelVariant:
    """One form in which a kernel is compiled.

    `types` are Triton's types of its run-time arguments, in order: "*bf16", "*fp16", "*fp32",
    "*i64", "*i1", "i32", "i64", "fp32"; a ":16" behind one promises a pointer aligned to 16 bytes
    or a multiple of 16, as Triton needs to know for loads of 16 bytes. `constants` are the values
    of its `tl.constexpr` parameters by name.
    """

    operator: str
    """The folder in `quatrain.plugins` whose `kernel.py` has it; or, with dots, a whole module."""
    kernel: str
    types: tuple[str, ...]
    constants: tuple[tuple[str, Constant], ...]
    num_warps: int = 4
    num_stages: int = 2


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where an argument points: into a tensor, some bytes behind its start.

    Tensors are counted through the operator's inputs and then its outputs; `WORKSPACE` is the
    scratch memory, which needs the `dtype` that is kept there.
    """

    tensor: int
    offset_bytes: int = 0
    dtype: Literal["float32", "float16", "bfloat16", "int32"] = "float32"


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: `arguments` are those of `variant.types`, in order."""

    variant: KernelVariant
    grid: tuple[int, int, int]
    arguments: tuple[Pointer | int | float, ...]


def name_kernel_module(variant: KernelVariant) -> str:
    """The module that has the variant's kernel."""
    if "." in variant.operator:
        return variant.operator
    return f"quatrain.plugins.{variant.operator}.kernel"


@dataclass(frozen=True, slots=True)
class Work:
    """What one call must do at least: each byte that is needed moved once, each FLOP done."""

    bytes_moved: int
    """Between the device's memory and its chip; what stays in caches is not counted twice."""
    flops: int
    """A multiplication and an addition are two."""
