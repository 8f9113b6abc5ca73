"""A tiny operator for tests: y = x * factor, in fp32, fp16 and bf16, one launch or two."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from quatrain.plugins.definition import (
    AttributeKind,
    AttributeValue,
    DType,
    OutputFacts,
    TensorFacts,
    UnsupportedError,
)
from quatrain.plugins.launch import WORKSPACE, KernelVariant, Launch, Pointer
from quatrain.plugins.operator import OperatorName

__all__ = ["BLOCK", "TwicePlugin"]

BLOCK = 1024
_TRITON: dict[DType, str] = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True)
class TwicePlugin:
    """x [R, C] -> y [R, C]; with `scratch` = 1 through the workspace (fp32 only)."""

    factor: float
    scratch: int = 0

    operator: ClassVar[OperatorName] = OperatorName("Twice")
    folder: ClassVar[str] = "tests.plugins.twice_kernel"
    attributes: ClassVar[Mapping[str, tuple[AttributeKind, AttributeValue | None]]] = {
        "factor": ("float", None),
        "scratch": ("int", 0),
    }
    num_outputs: ClassVar[int] = 1
    output_dtypes: ClassVar[tuple[DType | int, ...]] = (0,)

    def __post_init__(self) -> None:
        if self.factor == 0:
            raise UnsupportedError("factor is 0")

    def describe_outputs(self, dtypes: Sequence[DType], ranks: Sequence[int]) -> list[OutputFacts]:
        """One output of the input's shape and type."""
        if ranks[0] != 2:
            raise UnsupportedError(f"x has {ranks[0]} dimensions, not 2")
        return [OutputFacts(dtypes[0], ((0, 0), (0, 1)))]

    def check(self, inputs: Sequence[TensorFacts]) -> None:
        """Only floats; the columns are known."""
        if inputs[0].dtype not in _TRITON:
            raise UnsupportedError(f"x is {inputs[0].dtype}; the kernel takes {', '.join(_TRITON)}")
        if inputs[0].shape[1] < 0:
            raise UnsupportedError("the columns of x are dynamic")
        if self.scratch and inputs[0].dtype != "float32":
            raise UnsupportedError(f"scratch with {inputs[0].dtype}")

    def list_variants(self, inputs: Sequence[TensorFacts]) -> list[KernelVariant]:
        """The one with the input's type."""
        return [self._variant(inputs[0].dtype)]

    def count_workspace_bytes(self, inputs: Sequence[TensorFacts]) -> int:
        """A copy of x, if asked for."""
        return prod(inputs[0].max_shape) * 4 if self.scratch else 0

    def plan(
        self, dtypes: Sequence[DType], shapes: Sequence[tuple[int, ...]], num_multiprocessors: int
    ) -> list[Launch]:
        """x to y, or x to scratch and scratch to y with the factor squared."""
        size = prod(shapes[0])
        variant = self._variant(dtypes[0])
        grid = (-(-size // BLOCK), 1, 1)
        if not self.scratch:
            return [Launch(variant, grid, (Pointer(0), Pointer(1), size))]
        return [
            Launch(variant, grid, (Pointer(0), Pointer(WORKSPACE), size)),
            Launch(variant, grid, (Pointer(WORKSPACE), Pointer(1), size)),
        ]

    def _variant(self, dtype: DType) -> KernelVariant:
        pointer = f"*{_TRITON[dtype]}:16"
        constants = (("factor", self.factor), ("block", BLOCK))
        return KernelVariant(self.folder, "twice_kernel", (pointer, pointer, "i32"), constants)
