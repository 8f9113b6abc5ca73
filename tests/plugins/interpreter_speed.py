"""Triton's interpreter looks for the builtins of its language at every call of a function: a third
of the time that our kernels take in it. They are always the same ones."""

import inspect

import triton.language as tl
from triton.runtime import interpreter

__all__ = ["remember_builtins"]


def remember_builtins() -> None:
    """List them once, while none is replaced; what becomes of them is left to the interpreter."""
    packages = (tl, tl.core, tl.math, tl.tensor, tl.core.tensor_descriptor_base)
    known = {package: list_builtins(package) for package in packages}

    def patch_builtin(package, *rest):
        if package not in known:
            known[package] = list_builtins(package)
        for name in known[package]:
            member = getattr(package, name)
            if tl.core.is_builtin(member):
                interpreter._patch_attr(package, name, member, *rest)

    interpreter._patch_builtin = patch_builtin


def list_builtins(package: object) -> list[str]:
    return [name for name, member in inspect.getmembers(package) if tl.core.is_builtin(member)]
