"""The launches of `quatrain::ExitRouter`, from its sizes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from quatrain.plugins.definition import DType
from quatrain.plugins.launch import WORKSPACE, KernelVariant, Launch, Pointer

__all__ = ["ITEM_BYTES", "MAX_BLOCKS", "RouterSizes", "plan_launches"]

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
MAX_BLOCKS = 4

_FOLDER = "exit_router"
_TRITON = {"float16": "*fp16:16", "bfloat16": "*bf16:16", "float32": "*fp32:16"}
_FLOAT32 = "*fp32:16"
_TILE_ROWS = 16  # the least that tl.dot multiplies
_ALIGNMENT = 256
_INNER = Pointer(WORKSPACE)

_ONE_LAUNCH_BYTES = 256 * 1024
"""Weights up to this size are read by one multiprocessor, in one launch.

One draws some 60 GB/s, which makes 4 us of these, about what two more launches of a graph cost.
Beyond, each layer is a launch over all multiprocessors: in one launch they could only meet at a
barrier across the device, which needs memory that somebody has cleared and blocks that all run at
once, and a plugin is promised neither.
"""


@dataclass(frozen=True)
class RouterSizes:
    """What the shapes of a node's inputs say."""

    dtype: DType
    rows: int
    hidden: int
    inner: int
    router: int
    num_blocks: int

    @classmethod
    def read(cls, dtypes: Sequence[DType], shapes: Sequence[tuple[int, ...]]) -> "RouterSizes":
        """From all inputs, in order."""
        num_blocks = (len(shapes) - 5) // 4
        rows = prod(shapes[0][:-1])
        return cls(dtypes[0], rows, shapes[0][-1], shapes[2][0], shapes[-3][0], num_blocks)

    @cached_property
    def weight_shapes(self) -> list[tuple[int, ...]]:
        """Of every input but the first."""
        shapes: list[tuple[int, ...]] = [(self.hidden,)]
        for j in range(self.num_blocks):
            width = self.router if j else self.hidden
            shapes += [(self.inner, width), (self.inner,), (self.router, self.inner)]
            shapes += [(self.router,)]
        return [*shapes, (self.router,), (2, self.router), (2,)]

    @cached_property
    def weight_bytes(self) -> int:
        """Of all of them."""
        return sum(map(prod, self.weight_shapes)) * ITEM_BYTES[self.dtype]

    @property
    def fits_one_launch(self) -> bool:
        """Whether one multiprocessor reads the weights in good time."""
        return self.weight_bytes <= _ONE_LAUNCH_BYTES

    @property
    def state_pointer(self) -> Pointer:
        """The router's state, float32 [rows, router]."""
        return Pointer(WORKSPACE, self.state_offset)

    @property
    def state_offset(self) -> int:
        """Where the router's state lies in the scratch memory, behind the inner activations."""
        return -(-self.rows * self.inner * 4 // _ALIGNMENT) * _ALIGNMENT


def plan_launches(sizes: RouterSizes, epsilon: float, temperature: float) -> list[Launch]:
    """Of one call, in order."""
    if sizes.rows == 0:
        return []
    if sizes.fits_one_launch:
        return [_plan_all(sizes, epsilon, temperature)]
    launches = []
    x = Pointer(0)
    for j in range(sizes.num_blocks):
        fc1, fc2 = 2 + 4 * j, 4 + 4 * j
        launches.append(_plan_layer(sizes, x, fc1, _INNER, epsilon))
        launches.append(_plan_layer(sizes, _INNER, fc2, sizes.state_pointer, epsilon))
        x = sizes.state_pointer
    return [*launches, _plan_decision(sizes, epsilon, temperature)]


def _plan_all(sizes: RouterSizes, epsilon: float, temperature: float) -> Launch:
    """Everything in one."""
    num_inputs = len(sizes.weight_shapes) + 1
    blocks = list(range(2, num_inputs - 3))
    # Those of blocks that are not there are never read: those of the first stand in.
    blocks += blocks[:4] * (MAX_BLOCKS - sizes.num_blocks)
    tensors = [0, 1, *blocks, *range(num_inputs - 3, num_inputs)]
    rows, item_bytes = _choose_rows(sizes), ITEM_BYTES[sizes.dtype]
    widest = max(sizes.hidden, sizes.inner, sizes.router)
    variant = KernelVariant(
        operator=_FOLDER,
        kernel="route_exit",
        types=(
            *(_TRITON[sizes.dtype],) * (len(tensors) + 1),
            *(_FLOAT32,) * 3,
            *("i32", "fp32", "fp32"),
        ),
        constants=(
            ("hidden_size", sizes.hidden),
            ("inner_size", sizes.inner),
            ("router_size", sizes.router),
            ("num_blocks", sizes.num_blocks),
            ("rows", rows),
            ("block_n", 32),
            ("block_k", _choose_block(widest, (512 if rows == 1 else 128) // item_bytes)),
        ),
        num_warps=8 if rows == 1 else 4,
    )
    arguments: tuple[Pointer | int | float, ...] = (
        *(Pointer(tensor) for tensor in tensors),
        *(Pointer(num_inputs), Pointer(num_inputs + 1), _INNER, sizes.state_pointer),
        *(sizes.rows, epsilon, temperature),
    )
    return Launch(variant, (-(-sizes.rows // rows), 1, 1), arguments)


def _plan_layer(sizes: RouterSizes, x: Pointer, weight: int, y: Pointer, epsilon: float) -> Launch:
    """One layer, its weight and bias the inputs `weight` and `weight` + 1."""
    outputs, width = sizes.weight_shapes[weight - 1]
    rows, item_bytes = _choose_rows(sizes), ITEM_BYTES[sizes.dtype]
    block_n = 8 if rows == 1 else 32
    num_programs = -(-outputs // block_n)
    kind = _TRITON[sizes.dtype]
    is_first = x.tensor == 0
    variant = KernelVariant(
        operator=_FOLDER,
        kernel="run_layer",
        types=(
            kind if is_first else _FLOAT32,
            *(kind,) * 3,
            *(_FLOAT32, kind, "i32", "fp32"),
        ),
        constants=(
            ("width", width),
            ("outputs", outputs),
            ("normalize", is_first),
            ("gelu", y == _INNER),
            ("rows", rows),
            ("block_n", block_n),
            ("block_k", _choose_block(width, (1024 if rows == 1 else 256) // item_bytes)),
            ("share", _pad(-(-width // num_programs))),
        ),
    )
    normed = Pointer(len(sizes.weight_shapes) + 1)
    arguments = (
        *(x, Pointer(1), Pointer(weight), Pointer(weight + 1), y, normed),
        *(sizes.rows, epsilon),
    )
    return Launch(variant, (-(-sizes.rows // rows), num_programs, 1), arguments)


def _plan_decision(sizes: RouterSizes, epsilon: float, temperature: float) -> Launch:
    kind = _TRITON[sizes.dtype]
    variant = KernelVariant(
        operator=_FOLDER,
        kernel="decide_exit",
        types=(_FLOAT32, kind, kind, kind, _FLOAT32, "i32", "fp32", "fp32"),
        constants=(
            ("width", sizes.router),
            ("rows", 1),
            ("block_k", _choose_block(sizes.router, 1024)),
        ),
    )
    last = len(sizes.weight_shapes)
    arguments = (
        *(sizes.state_pointer, Pointer(last - 2), Pointer(last - 1), Pointer(last)),
        *(Pointer(last + 2), sizes.rows, epsilon, temperature),
    )
    return Launch(variant, (sizes.rows, 1, 1), arguments)


def _choose_rows(sizes: RouterSizes) -> int:
    return 1 if sizes.rows == 1 else _TILE_ROWS


def _choose_block(width: int, most: int) -> int:
    """The power of two that covers `width`, `most` at most."""
    return max(16, min(most, _pad(width)))


def _pad(size: int) -> int:
    """To a power of two, as blocks have to be."""
    return 1 << (size - 1).bit_length()
