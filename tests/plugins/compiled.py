"""What the compiler says of kernels: registers, shared memory, spills, widths of loads."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from quatrain.plugins.compiler import compile_kernels
from quatrain.plugins.launch import KernelVariant

__all__ = ["Report", "compile_report"]

_LOAD = re.compile(r"\bld\.global(?:\.[\w:]+)*?(?:\.v([248]))?\.[busf](8|16|32|64)\b")
_ASYNC = re.compile(r"\bcp\.async\.c[ag]\.shared\.global(?:\.[\w:]+)* .*?, (0x[0-9a-f]+|\d+)\b")


@dataclass(frozen=True, slots=True)
class Report:
    """One variant, compiled for one SM."""

    variant: KernelVariant
    registers: int
    """Of a thread."""
    shared_bytes: int
    """Dynamic shared memory of a block."""
    local_bytes: int
    """Stack of a thread: more than 0 where registers were spilled."""
    cubin_bytes: int
    ptx: str

    @property
    def load_bytes(self) -> list[int]:
        """Bytes that each load from global memory in the PTX takes a thread, cp.async too."""
        loads = [int(n or 1) * int(bits) // 8 for n, bits in _LOAD.findall(self.ptx)]
        return loads + [int(size, 0) for size in _ASYNC.findall(self.ptx)]


def compile_report(variants: Sequence[KernelVariant], sm: str) -> list[Report]:
    """Compile variants for a compute capability, as in "8.6"; in one child process."""
    return [
        Report(
            variant=kernel.cubin.variant,
            registers=kernel.registers,
            shared_bytes=kernel.cubin.shared_bytes,
            local_bytes=kernel.local_bytes,
            cubin_bytes=len(kernel.cubin.image),
            ptx=kernel.ptx,
        )
        for kernel in compile_kernels(variants, sm, with_report=True)
    ]
