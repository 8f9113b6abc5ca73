"""`quatrain::ExitRouter` as a plugin: which launches for which shapes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from typing import ClassVar

from quatrain.plugins.definition import (
    AttributeKind,
    AttributeValue,
    DType,
    OutputFacts,
    TensorFacts,
    UnsupportedError,
)
from quatrain.plugins.exit_router.launches import ITEM_BYTES, MAX_BLOCKS, RouterSizes, plan_launches
from quatrain.plugins.launch import KernelVariant, Launch, Work
from quatrain.plugins.operator import OperatorName

__all__ = ["EXIT_ROUTER", "ExitRouterPlugin"]

EXIT_ROUTER = OperatorName("ExitRouter")

_MAX_WIDTH = 8192


@dataclass(frozen=True, slots=True)
class ExitRouterPlugin:
    """Small routers run in one launch; of large ones each layer is one.

    Inputs: hidden [..., H], norm_weight [H], per block fc1_weight [I, H or R], fc1_bias [I],
    fc2_weight [R, I], fc2_bias [R], then router_norm_weight [R], head_weight [2, R], head_bias [2],
    all of one float type. Outputs: normed [..., H] of that type, log_probs float32 [..., 2].
    """

    operator: ClassVar[OperatorName] = EXIT_ROUTER
    folder: ClassVar[str] = "exit_router"
    attributes: ClassVar[Mapping[str, tuple[AttributeKind, AttributeValue | None]]] = {
        "epsilon": ("float", None),
        "temperature": ("float", None),
    }
    num_outputs: ClassVar[int] = 2
    output_dtypes: ClassVar[tuple[DType | int, ...]] = (0, "float32")

    epsilon: float
    temperature: float

    def __post_init__(self) -> None:
        if not (isfinite(self.epsilon) and self.epsilon >= 0):
            raise UnsupportedError(f"ExitRouter: epsilon {self.epsilon}, which must be 0 or more")
        if not (isfinite(self.temperature) and self.temperature > 0):
            raise UnsupportedError(
                f"ExitRouter: temperature {self.temperature}, which must be above 0"
            )

    def describe_outputs(self, dtypes: Sequence[DType], ranks: Sequence[int]) -> list[OutputFacts]:
        """See `Definition`."""
        _check_types(dtypes)
        if not ranks[0]:
            raise UnsupportedError("ExitRouter: hidden is a single number, which must be [..., H]")
        leading = tuple((0, axis) for axis in range(ranks[0] - 1))
        normed = OutputFacts(dtypes[0], (*leading, (0, ranks[0] - 1)))
        return [normed, OutputFacts("float32", (*leading, 2))]

    def check(self, inputs: Sequence[TensorFacts]) -> None:
        """See `Definition`."""
        dtypes, shapes = [fact.dtype for fact in inputs], [fact.max_shape for fact in inputs]
        self.describe_outputs(dtypes, [len(shape) for shape in shapes])
        if len(inputs[2].shape) != 2 or len(inputs[-3].shape) != 1:
            raise UnsupportedError(
                f"ExitRouter: the first layer's weight is {list(inputs[2].shape)} and the router's "
                f"norm {list(inputs[-3].shape)}, which must be [I, H] and [R]"
            )
        sizes = RouterSizes.read(dtypes, shapes)
        for index, expected in enumerate(sizes.weight_shapes, start=1):
            if tuple(inputs[index].shape) != expected:
                raise UnsupportedError(
                    f"ExitRouter: input {index} is {list(inputs[index].shape)}, which must be "
                    f"{list(expected)} as a constant, by the others"
                )
        widest = max(sizes.hidden, sizes.inner, sizes.router)
        if inputs[0].shape[-1] < 1 or not 1 <= widest <= _MAX_WIDTH:
            raise UnsupportedError(
                f"ExitRouter: a layer of width {widest}; widths are fixed, 1 to {_MAX_WIDTH}"
            )

    def list_variants(self, inputs: Sequence[TensorFacts]) -> list[KernelVariant]:
        """See `Definition`."""
        dtypes = [fact.dtype for fact in inputs]
        weights = [fact.max_shape for fact in inputs[1:]]
        width, most = inputs[0].max_shape[-1], prod(inputs[0].max_shape[:-1])
        launches = [
            launch
            for rows in ((1, 2) if most > 1 else (1,))
            for launch in self.plan(dtypes, [(rows, width), *weights], 1)
        ]
        return list(dict.fromkeys(launch.variant for launch in launches))

    def count_workspace_bytes(self, inputs: Sequence[TensorFacts]) -> int:
        """See `Definition`."""
        sizes = RouterSizes.read([f.dtype for f in inputs], [f.max_shape for f in inputs])
        return sizes.state_offset + 4 * sizes.rows * sizes.router

    def count_work(self, dtypes: Sequence[DType], shapes: Sequence[tuple[int, ...]]) -> Work:
        """What one call must do at least."""
        sizes = RouterSizes.read(dtypes, shapes)
        states = 2 * sizes.rows * sizes.hidden * ITEM_BYTES[sizes.dtype]
        matrices = sum(prod(shape) for shape in sizes.weight_shapes if len(shape) == 2)
        return Work(states + 8 * sizes.rows + sizes.weight_bytes, 2 * sizes.rows * matrices)

    def plan(
        self, dtypes: Sequence[DType], shapes: Sequence[tuple[int, ...]], num_multiprocessors: int
    ) -> list[Launch]:
        """See `Definition`."""
        return plan_launches(RouterSizes.read(dtypes, shapes), self.epsilon, self.temperature)


def _check_types(dtypes: Sequence[DType]) -> None:
    known = [5 + 4 * count for count in range(1, MAX_BLOCKS + 1)]
    if len(dtypes) not in known:
        raise UnsupportedError(
            f"ExitRouter: {len(dtypes)} inputs, which must be {known}, for 1 to {MAX_BLOCKS} "
            "MLP blocks"
        )
    if len(set(dtypes)) > 1 or dtypes[0] not in ITEM_BYTES:
        raise UnsupportedError(
            f"ExitRouter: inputs of type {', '.join(dict.fromkeys(dtypes))}, which must all be of "
            f"one of {', '.join(ITEM_BYTES)}"
        )
