"""Runs the launches that an operator plans through Triton's interpreter, on CPU tensors.

`tests/conftest.py` sets TRITON_INTERPRET=1 for the whole test process.
"""

import importlib
import os
from collections.abc import Sequence
from typing import Any

import torch
from tests.plugins.interpreter_repair import repair_bf16_dot
from tests.plugins.interpreter_speed import remember_builtins

from quatrain.plugins.definition import Definition, DType, TensorFacts
from quatrain.plugins.launch import WORKSPACE, KernelVariant, Launch, Pointer, name_kernel_module

__all__ = ["DTYPES", "TRITON_DTYPES", "get_facts", "launch_variant", "run_plan"]

DTYPES: dict[torch.dtype, DType] = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int64: "int64",
    torch.bool: "bool",
}
_TORCH = {name: dtype for dtype, name in DTYPES.items()} | {"int32": torch.int32}
TRITON_DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i1": torch.bool,
}
repair_bf16_dot()
remember_builtins()

_GUARD_BYTES = 256
# Beside inputs there is NaN, so that what is read out of bounds spoils the result; beside what is
# written something else, so that a NaN that is written there is seen.
_NAN, _CANARY = 0xFF, 0xA5


def get_facts(inputs: Sequence[torch.Tensor]) -> list[TensorFacts]:
    """The inputs as a build with exactly these shapes sees them."""
    return [TensorFacts(DTYPES[t.dtype], tuple(t.shape), tuple(t.shape)) for t in inputs]


def run_plan(
    definition: Definition, inputs: Sequence[torch.Tensor], num_multiprocessors: int = 4
) -> list[torch.Tensor]:
    """The outputs of one call, as the plugin would launch it.

    Outputs and workspace are full of 0xFF bytes (NaN) before; no launch may write to an input or
    next to an output, and each must be of a variant that `list_variants` knows.
    """
    facts = get_facts(inputs)
    definition.check(facts)
    dtypes = [fact.dtype for fact in facts]
    outputs = definition.describe_outputs(dtypes, [t.ndim for t in inputs])
    arena = _Arena(definition.count_workspace_bytes(facts))
    for tensor in inputs:
        arena.add(tensor.dtype, tuple(tensor.shape), _NAN).copy_(tensor)
    results = []
    for output in outputs:
        dims = (d if isinstance(d, int) else inputs[d[0]].shape[d[1]] for d in output.shape)
        results.append(arena.add(_TORCH[output.dtype], tuple(dims), _CANARY))
    known = definition.list_variants(facts)
    for launch in definition.plan(dtypes, [t.shape for t in inputs], num_multiprocessors):
        assert launch.variant in known, f"list_variants lacks {launch.variant}"
        _run_launch(launch, arena)
    arena.check_guards()
    for index, tensor in enumerate(inputs):
        seen = arena.tensors[index].view(torch.uint8)
        assert torch.equal(seen, tensor.contiguous().view(-1).view(torch.uint8)), index
    return [result.clone() for result in results]


class _Arena:
    """Device memory: tensors in order and the workspace, each between guards."""

    def __init__(self, workspace_bytes: int) -> None:
        self._memories: list[tuple[torch.Tensor, int]] = []
        self.workspace = self._allocate(workspace_bytes, _CANARY)
        self.tensors: list[torch.Tensor] = []

    def add(self, dtype: torch.dtype, shape: tuple[int, ...], guard: int) -> torch.Tensor:
        """The next tensor, full of 0xFF."""
        num_bytes = torch.Size(shape).numel() * dtype.itemsize
        self.tensors.append(self._allocate(num_bytes, guard).view(dtype))
        return self.tensors[-1].view(shape)

    def check_guards(self) -> None:
        """Fail if something was written beside a tensor."""
        for memory, guard in self._memories:
            beside = torch.cat((memory[:_GUARD_BYTES], memory[-_GUARD_BYTES:]))
            assert bool((beside == guard).all()), "written out of bounds"

    def _allocate(self, num_bytes: int, guard: int) -> torch.Tensor:
        memory = torch.full((num_bytes + 2 * _GUARD_BYTES,), guard, dtype=torch.uint8)
        self._memories.append((memory, guard))
        inside = memory[_GUARD_BYTES : _GUARD_BYTES + num_bytes]
        inside.fill_(0xFF)
        return inside


def _run_launch(launch: Launch, arena: _Arena) -> None:
    variant = launch.variant
    assert len(launch.arguments) == len(variant.types), variant
    assert all(size >= 1 for size in launch.grid), launch.grid
    arguments = [
        _resolve(argument, kind, arena)
        for argument, kind in zip(launch.arguments, variant.types, strict=True)
    ]
    launch_variant(variant, launch.grid, arguments)


def launch_variant(
    variant: KernelVariant, grid: tuple[int, int, int], arguments: Sequence[Any]
) -> None:
    """Interpret one launch."""
    assert os.environ.get("TRITON_INTERPRET") == "1"
    function = getattr(importlib.import_module(name_kernel_module(variant)), variant.kernel)
    constants = dict(variant.constants)
    names = [name for name in function.arg_names if name not in constants]
    function[grid](**dict(zip(names, arguments, strict=True)), **constants)


def _resolve(
    argument: Pointer | int | float, kind: str, arena: _Arena
) -> torch.Tensor | int | float:
    """An argument as the interpreter takes it; fails where the declared type would be a lie."""
    base, _, promise = kind.partition(":")
    if not isinstance(argument, Pointer):
        assert isinstance(argument, float) == (base == "fp32"), (argument, kind)
        assert not promise or argument % 16 == 0, (argument, kind)
        assert base != "i32" or -(2**31) <= argument < 2**31, (argument, kind)
        return argument
    assert not promise or argument.offset_bytes % 16 == 0, (argument, kind)
    dtype = TRITON_DTYPES[base.removeprefix("*")]
    if argument.tensor == WORKSPACE:
        assert dtype == _TORCH[argument.dtype], (argument, kind)
        memory = arena.workspace
    else:
        tensor = arena.tensors[argument.tensor]
        assert tensor.dtype == dtype, (argument, kind, tensor.dtype)
        memory = tensor.view(torch.uint8)
    assert base.startswith("*") and 0 <= argument.offset_bytes <= memory.numel(), (argument, kind)
    rest = memory[argument.offset_bytes :]
    return rest[: rest.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
