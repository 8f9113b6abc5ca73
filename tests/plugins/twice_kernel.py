"""A kernel for tests: y = x * factor."""

import triton
import triton.language as tl

__all__ = ["twice_kernel"]


@triton.jit
def twice_kernel(x, y, size, factor: tl.constexpr, block: tl.constexpr):
    """Multiply `size` elements, `block` of them a program."""
    start = tl.program_id(0) * block
    offsets = start + tl.arange(0, block)
    # In fp32: the interpreter of triton 3.9 gets arithmetic in bf16 wrong.
    values = tl.load(x + offsets, mask=offsets < size, other=0.0).to(tl.float32) * factor
    tl.store(y + offsets, values.to(y.dtype.element_ty), mask=offsets < size)
