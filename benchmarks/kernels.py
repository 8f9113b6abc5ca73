"""Our kernels as compiled for three GPUs, and what their calls must take there; needs no GPU.

python -m benchmarks.kernels > benchmarks/kernels.md
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.plugins.compiled import Report, compile_report

from benchmarks._kernel_cases import Case, list_realistic_cases, make_definition
from quatrain.plugins.compiler import SHARED_MEMORY
from quatrain.plugins.definition import DType, TensorFacts
from quatrain.plugins.launch import KernelVariant

__all__ = ["Device", "find_roofline_seconds", "write_tables"]

DTYPE: DType = "bfloat16"
SMS = ("8.0", "8.6", "9.0")


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU's data sheet."""

    name: str
    multiprocessors: int
    gb_per_s: float
    tflops: float
    """Dense, of fp16 tensor cores with sums in fp32."""


DEVICES = (
    Device("A100 80GB", 108, 2039, 312),
    Device("RTX A6000", 84, 768, 154.8),
    Device("RTX 3090", 82, 936, 71),
)
_HEAD = """\
# Kernels: what the compiler says, and what a call must take

Written by `python -m benchmarks.kernels > benchmarks/kernels.md`, without a GPU: nothing here was
measured on one. All in bfloat16. `make gpu-check` measures the same calls.
"""
_COMPILED = """\
## Compiled

Of every kernel form that the calls below launch: registers of a thread, shared memory of a block
(limits: {limits}), bytes of a thread's stack (more than 0 would be
spilled registers), for SM {sms}. Last, the instructions that read global memory in
the PTX for SM 8.0, by the bytes a thread takes at once; 16 is the most there is. Those of weights,
keys and values lie in the loops; the narrow ones read single numbers, such as a bias or a position.
"""
_CALLS = """\
## Calls

Bytes that must be moved between memory and chip and floating-point operations (a multiplication and
an addition are two), each counted once, and the time that the slower of the two takes at the data
sheet's peak (roofline). Launches are those on an A100.

Data sheets: {devices}.
Sources: NVIDIA A100 80GB (SXM) datasheet; NVIDIA Ampere GA102 GPU architecture whitepaper (RTX
A6000, RTX 3090); tensor throughput is dense, fp16 with sums in fp32.
"""


def find_roofline_seconds(bytes_moved: int, flops: int, device: Device) -> float:
    """The time that a call cannot be faster than."""
    return max(bytes_moved / (device.gb_per_s * 1e9), flops / (device.tflops * 1e12))


def write_tables(cases: Sequence[Case], sms: Sequence[str] = SMS) -> str:
    """Both tables, in Markdown."""
    limits = ", ".join(f"{SHARED_MEMORY[sm] // 1024} KiB on SM {sm}" for sm in sms)
    devices = "; ".join(
        f"{d.name} {d.gb_per_s:.0f} GB/s, {d.tflops:g} TFLOP/s, {d.multiprocessors} multiprocessors"
        for d in DEVICES
    )
    parts = [
        _HEAD,
        _CALLS.format(devices=devices),
        "\n".join(_write_calls(cases)) + "\n",
        _COMPILED.format(limits=limits, sms=", ".join(sms)),
        "\n".join(_write_compiled(cases, sms)),
    ]
    return "\n".join(parts)


def _write_calls(cases: Sequence[Case]) -> Iterator[str]:
    names = " | ".join(f"{d.name}, us" for d in DEVICES)
    yield f"| operator | call | launches | MB moved | MFLOP | {names} |"
    yield "|---|---|--:|--:|--:|" + "--:|" * len(DEVICES)
    for case in cases:
        dtypes, shapes = zip(*case.list_inputs(DTYPE), strict=True)
        definition = make_definition(case)
        work = definition.count_work(dtypes, shapes)
        launches = definition.plan(dtypes, shapes, DEVICES[0].multiprocessors)
        times = " | ".join(
            f"{1e6 * find_roofline_seconds(work.bytes_moved, work.flops, device):.2f}"
            for device in DEVICES
        )
        yield (
            f"| {case.operator} | {case.name} | {len(launches)} | {work.bytes_moved / 1e6:.3f} "
            f"| {work.flops / 1e6:.2f} | {times} |"
        )


def _write_compiled(cases: Sequence[Case], sms: Sequence[str]) -> Iterator[str]:
    uses = _find_uses(cases)
    reports = [compile_report(list(uses), sm) for sm in sms]
    yield (
        "| kernel | used by | constants | warps | registers | shared, KiB | spilled, B "
        "| cubin, kB | loads: bytes x count |"
    )
    yield "|---|---|---|--:|---|---|---|---|---|"
    for (variant, names), row in zip(uses.items(), zip(*reports, strict=True), strict=True):
        yield _write_variant(variant, names, row)


def _write_variant(variant: KernelVariant, names: Sequence[str], reports: Sequence[Report]) -> str:
    constants = ", ".join(f"{name.lower()} {value}" for name, value in variant.constants)
    widths = sorted(Counter(reports[0].load_bytes).items(), reverse=True)
    cells = [
        f"{variant.operator}.{variant.kernel}",
        "; ".join(names),
        constants,
        str(variant.num_warps),
        " / ".join(str(r.registers) for r in reports),
        " / ".join(f"{r.shared_bytes / 1024:.1f}" for r in reports),
        " / ".join(str(r.local_bytes) for r in reports),
        " / ".join(f"{r.cubin_bytes / 1000:.0f}" for r in reports),
        ", ".join(f"{width} x {count}" for width, count in widths),
    ]
    return f"| {' | '.join(cells)} |"


def _find_uses(cases: Sequence[Case]) -> dict[KernelVariant, list[str]]:
    """The kernel forms that calls launch on some of the devices, and the calls' names."""
    uses: dict[KernelVariant, list[str]] = {}
    for case in cases:
        dtypes, shapes = zip(*case.list_inputs(DTYPE), strict=True)
        definition = make_definition(case)
        definition.check([TensorFacts(d, s, s) for d, s in zip(dtypes, shapes, strict=True)])
        for device in DEVICES:
            for launch in definition.plan(dtypes, shapes, device.multiprocessors):
                names = uses.setdefault(launch.variant, [])
                if case.name not in names:
                    names.append(case.name)
    return uses


if __name__ == "__main__":
    print(write_tables(list_realistic_cases()))
