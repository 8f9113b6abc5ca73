"""What each operator says of itself to be a TensorRT plugin."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from quatrain.plugins.launch import KernelVariant, Launch
from quatrain.plugins.operator import OperatorName

__all__ = [
    "AttributeKind",
    "AttributeValue",
    "DType",
    "Definition",
    "DefinitionFactory",
    "OutputFacts",
    "TensorFacts",
    "UnsupportedError",
]

DType = Literal["float32", "float16", "bfloat16", "int64", "bool"]
AttributeKind = Literal["int", "float", "string"]
AttributeValue = int | float | str


class UnsupportedError(ValueError):
    """The kernels cannot run this; the message says what was found and what they take."""


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """An input at build time: the shape has -1 where it is dynamic, `max_shape` the most there."""

    dtype: DType
    shape: tuple[int, ...]
    max_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OutputFacts:
    """An output: its type, and for each dimension the (input, axis) it equals, or its size."""

    dtype: DType
    shape: tuple[tuple[int, int] | int, ...]


class Definition(Hashable, Protocol):
    """An operator with the attributes of one node; equal ones plan alike."""

    def describe_outputs(self, dtypes: Sequence[DType], ranks: Sequence[int]) -> list[OutputFacts]:
        """From the types and ranks of the inputs; `UnsupportedError` if they do not go together."""
        ...

    def check(self, inputs: Sequence[TensorFacts]) -> None:
        """`UnsupportedError` if there is no kernel for these inputs."""
        ...

    def list_variants(self, inputs: Sequence[TensorFacts]) -> list[KernelVariant]:
        """Every kernel that `plan` may ask for, within these bounds."""
        ...

    def count_workspace_bytes(self, inputs: Sequence[TensorFacts]) -> int:
        """Scratch memory that `plan` needs at most, within these bounds."""
        ...

    def plan(
        self, dtypes: Sequence[DType], shapes: Sequence[tuple[int, ...]], num_multiprocessors: int
    ) -> list[Launch]:
        """The launches of one call, in order, from the shapes of the inputs alone."""
        ...


class DefinitionFactory(Protocol):
    """What `plugin.py` of an operator's folder offers, as its class."""

    operator: OperatorName
    folder: str
    attributes: Mapping[str, tuple[AttributeKind, AttributeValue | None]]
    """Kind and default (None: required) of each."""
    num_outputs: int
    output_dtypes: tuple[DType | int, ...]
    """The type of each output, or the input whose type it has: TensorRT asks for the types before
    it knows the ranks that `describe_outputs` takes."""

    def __call__(self, **attributes: AttributeValue) -> Definition:
        """With the attributes of a node; `UnsupportedError` if one has no meaning."""
        ...
