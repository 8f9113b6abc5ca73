"""Compiles kernels ahead of time, for GPUs that are not there.

Triton does it in a child process: what a process imported with TRITON_INTERPRET=1 it cannot
compile, and the exporter need not carry Triton. Only the child imports it.

    python -m quatrain.plugins.compiler REQUEST RESULT
"""

import base64
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quatrain.plugins.cubin import Cubin, read_variant
from quatrain.plugins.launch import KernelVariant, name_kernel_module

__all__ = [
    "SHARED_MEMORY",
    "CompileError",
    "CompiledKernel",
    "compile_kernels",
    "get_cubins",
    "has_triton",
]

SHARED_MEMORY = {
    "8.0": 163 * 1024,
    "8.6": 99 * 1024,
    "8.7": 163 * 1024,
    "8.9": 99 * 1024,
    "9.0": 227 * 1024,
}
"""Bytes that a block may have, by compute capability (CUDA programming guide, table of technical
specifications). These are the ones that kernels are compiled for."""


class CompileError(RuntimeError):
    """A kernel could not be compiled; the message has the compiler's words."""


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A cubin and, where asked for, what the compiler says of it."""

    cubin: Cubin
    ptx: str = ""
    registers: int = 0
    """Of a thread."""
    local_bytes: int = 0
    """Stack of a thread: registers that were spilled, arrays that are indexed."""


def has_triton() -> bool:
    """Whether kernels can be compiled here."""
    return importlib.util.find_spec("triton") is not None


def compile_kernels(
    variants: Sequence[KernelVariant], sm: str, *, with_report: bool = False
) -> list[CompiledKernel]:
    """Compile each variant for a compute capability, as in "8.6", in a child process.

    `with_report` fills in what `CompiledKernel` says beyond the cubin. Raises `CompileError`.
    """
    if sm not in SHARED_MEMORY:
        raise CompileError(
            f"kernels for SM {sm}: they are compiled for SM {', '.join(SHARED_MEMORY)} only"
        )
    request = {"variants": [asdict(v) for v in variants], "sm": sm, "with_report": with_report}
    with tempfile.TemporaryDirectory(prefix="quatrain-compile-") as folder:
        paths = Path(folder, "request.json"), Path(folder, "result.json")
        paths[0].write_text(json.dumps(request), "utf-8")
        _run_child(paths)
        results = json.loads(paths[1].read_text("utf-8"))
    return [_read_result(v, r, sm) for v, r in zip(variants, results, strict=True)]


_CUBINS: dict[tuple[KernelVariant, str], Cubin] = {}


def get_cubins(variants: Sequence[KernelVariant], sm: str) -> list[Cubin]:
    """As `compile_kernels`, but each variant only once in the life of the process."""
    missing = [v for v in dict.fromkeys(variants) if (v, sm) not in _CUBINS]
    if missing:
        kernels = compile_kernels(missing, sm)
        _CUBINS.update({(kernel.cubin.variant, sm): kernel.cubin for kernel in kernels})
    return [_CUBINS[variant, sm] for variant in variants]


def _run_child(paths: Sequence[Path]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    # Which line of the source an instruction is of: two thirds of a cubin, and nobody asks.
    environment["TRITON_DISABLE_LINE_INFO"] = "1"
    if not _has_cache(environment):
        environment["TRITON_CACHE_DIR"] = os.fspath(paths[0].with_name("cache"))
    # -P: nothing is imported from the folder that somebody happens to be in.
    command = [sys.executable, "-P", "-m", "quatrain.plugins.compiler", *map(os.fspath, paths)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(f"compiling kernels failed:\n{done.stderr[-4000:].strip()}")


def _has_cache(environment: Mapping[str, str]) -> bool:
    """Whether Triton can write to its cache, where it would fail otherwise."""
    home = environment.get("TRITON_HOME") or os.path.expanduser("~")
    folder = environment.get("TRITON_CACHE_DIR") or os.path.join(home, ".triton", "cache")
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _read_result(variant: KernelVariant, result: dict[str, Any], sm: str) -> CompiledKernel:
    if result["shared_bytes"] > SHARED_MEMORY[sm]:
        raise CompileError(
            f"kernel {variant.kernel} of {variant.operator} needs {result['shared_bytes']:,} bytes "
            f"of shared memory, SM {sm} has {SHARED_MEMORY[sm]:,}"
        )
    image = base64.b64decode(result.pop("image"))
    cubin = Cubin(variant, result["entry"], result["shared_bytes"], result["threads"], image)
    return CompiledKernel(cubin, **result["report"])


# What follows runs in the child.


def main(request_path: str, result_path: str) -> None:
    """Compile what a request file asks for into a result file."""
    request = json.loads(Path(request_path).read_text("utf-8"))
    results = [
        _compile(read_variant(facts), int(request["sm"].replace(".", "")), request["with_report"])
        for facts in request["variants"]
    ]
    Path(result_path).write_text(json.dumps(results), "utf-8")


def _compile(variant: KernelVariant, arch: int, with_report: bool) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(importlib.import_module(name_kernel_module(variant)), variant.kernel)
    constants = dict(variant.constants)
    names = [name for name in function.arg_names if name not in constants]
    if len(names) != len(variant.types):
        raise TypeError(f"{variant.kernel} takes {names}, its types are {variant.types}")
    types = dict(zip(names, variant.types, strict=True))
    # Triton's own ":16" of tools/compile.py: a pointer or number that 16 divides.
    divisible = [name for name in names if types[name].endswith(":16")]
    source = ASTSource(
        fn=function,
        signature={
            name: types[name].removesuffix(":16") if name in types else "constexpr"
            for name in function.arg_names
        },
        constexprs=constants,
        attrs={(function.arg_names.index(n),): [["tt.divisibility", 16]] for n in divisible},
    )
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
    compile_source: Any = triton.compile
    compiled = compile_source(
        source, GPUTarget("cuda", arch, 32), options | {"enable_fp_fusion": True}
    )
    metadata = compiled.metadata
    if metadata.global_scratch_size or metadata.profile_scratch_size or metadata.num_ctas != 1:
        raise ValueError(f"{variant.kernel} needs scratch memory or clusters, which nobody gives")
    image = compiled.asm["cubin"]
    return {
        "image": base64.b64encode(image).decode(),
        "entry": metadata.name,
        "shared_bytes": metadata.shared,
        "threads": metadata.num_warps * 32,
        "report": _report(image) | {"ptx": compiled.asm["ptx"]} if with_report else {},
    }


def _report(image: bytes) -> dict[str, int]:
    """Registers and stack from `cuobjdump --dump-resource-usage`, which comes with Triton."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image)
        file.flush()
        command = [os.fspath(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage = {name: int(value) for name, value in re.findall(r"\b([A-Z]+):(\d+)", text)}
    return {"registers": usage["REG"], "local_bytes": usage["STACK"] + usage["LOCAL"]}


if __name__ == "__main__":
    main(*sys.argv[1:])
