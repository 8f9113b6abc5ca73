"""Runs an operator's planned launches on torch tensors, by Triton's own launcher.

The grids and arguments are those of the plugin. Triton compiles the kernels itself here, or
interprets them where TRITON_INTERPRET=1 is set and the tensors are on the CPU.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from quatrain.plugins.definition import Definition, DType, TensorFacts
from quatrain.plugins.launch import WORKSPACE, Launch, Pointer, name_kernel_module

__all__ = ["DTYPES", "PreparedCall", "prepare_call"]

DTYPES: dict[DType, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "bool": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_NUMBERS = {"float32": torch.float32, "int32": torch.int32}
_CPU_MULTIPROCESSORS = 4


class PreparedCall(NamedTuple):
    """A call whose memory is there: `launch` only launches, as often as one likes."""

    launch: Callable[[], None]
    outputs: list[torch.Tensor]


def prepare_call(definition: Definition, inputs: Sequence[torch.Tensor]) -> PreparedCall:
    """Outputs and workspace are full of 0xFF bytes (NaN) before the first launch.

    Raises `UnsupportedError` if there is no kernel for these inputs.
    """
    facts = [TensorFacts(_NAMES[t.dtype], tuple(t.shape), tuple(t.shape)) for t in inputs]
    definition.check(facts)
    dtypes, shapes = [fact.dtype for fact in facts], [fact.shape for fact in facts]
    device = inputs[0].device
    outputs = [
        _allocate(
            [d if isinstance(d, int) else shapes[d[0]][d[1]] for d in o.shape], o.dtype, device
        )
        for o in definition.describe_outputs(dtypes, [len(shape) for shape in shapes])
    ]
    workspace = torch.full(
        (max(definition.count_workspace_bytes(facts), 16),), 0xFF, dtype=torch.uint8, device=device
    )
    tensors = {WORKSPACE: workspace} | dict(enumerate([*inputs, *outputs]))
    launches = [
        _bind(launch, tensors)
        for launch in definition.plan(dtypes, shapes, _count_multiprocessors(device))
    ]

    def launch_all() -> None:
        for launch in launches:
            launch()

    return PreparedCall(launch_all, outputs)


def _resolve_shape(
    shape: Sequence[tuple[int, int] | int], shapes: Sequence[tuple[int, ...]]
) -> list[int]:
    return [size if isinstance(size, int) else shapes[size[0]][size[1]] for size in shape]


def _allocate(shape: Sequence[int], dtype: DType, device: torch.device) -> torch.Tensor:
    tensor = torch.empty(tuple(shape), dtype=DTYPES[dtype], device=device)
    tensor.view(torch.uint8).fill_(0xFF)
    return tensor


def _count_multiprocessors(device: torch.device) -> int:
    if device.type == "cpu":
        return _CPU_MULTIPROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _bind(launch: Launch, tensors: dict[int, torch.Tensor]) -> Callable[[], None]:
    variant = launch.variant
    function: Any = getattr(importlib.import_module(name_kernel_module(variant)), variant.kernel)
    constants = dict(variant.constants)
    names = [name for name in function.arg_names if name not in constants]
    values = [_resolve(argument, tensors) for argument in launch.arguments]
    arguments = dict(zip(names, values, strict=True)) | constants
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
    return lambda: function[launch.grid](**arguments, **options)


def _resolve(
    argument: Pointer | int | float, tensors: dict[int, torch.Tensor]
) -> torch.Tensor | int | float:
    """A pointer as a view, from its offset to the end of the tensor."""
    if not isinstance(argument, Pointer):
        return argument
    tensor = tensors[argument.tensor]
    dtype = tensor.dtype
    if argument.tensor == WORKSPACE:
        dtype = _NUMBERS[argument.dtype]
    elif not argument.offset_bytes:
        return tensor
    rest = tensor.view(-1).view(torch.uint8)[argument.offset_bytes :]
    return rest[: rest.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
