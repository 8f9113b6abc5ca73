"""Tells what this machine can build and run, and why not; imports nothing heavy."""

import importlib.metadata
import platform
from dataclasses import dataclass

from quatrain.exporter.engine.choice import find_builder, find_installed_version
from quatrain.exporter.local_gpu import LocalGpus, find_gpus
from quatrain.exporter.targets import TARGETS, Flavour, Target

__all__ = ["DoctorReport", "Package", "TargetReport", "examine_machine"]

_PACKAGES = {
    "numpy": "running",
    "onnxruntime": "running on a CPU",
    "tokenizers": "text in and out",
    "onnx": "exporting and building",
    "onnx-ir": "exporting",
    "onnxscript": "exporting",
    "polygraphy": "comparing",
    "cuda-python": "running on a GPU",
    "triton": "compiling kernels",
    "torch": "training the samples, and tests",
}
_FLAVOURS: dict[Flavour, str] = {
    "tensorrt-rtx": "building without a GPU, running on one",
    "tensorrt": "building and running on the same GPU",
}


@dataclass(frozen=True, slots=True)
class Package:
    """A package quatrain can use; `version` is None where it is not installed."""

    name: str
    version: str | None
    used_for: str


@dataclass(frozen=True, slots=True)
class TargetReport:
    """What can be done here for one target, or what stands in the way.

    `flavour` is the TensorRT that builds for it, `note` what its vendor says of that.
    """

    name: str
    title: str
    sm: str
    can_build: bool
    flavour: Flavour | None
    build_problem: str | None
    build_fix: str | None
    can_run: bool
    run_problem: str | None
    note: str | None


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """A machine as quatrain sees it; `dataclasses.asdict` makes it JSON."""

    python: str
    platform: str
    packages: tuple[Package, ...]
    local: LocalGpus
    targets: tuple[TargetReport, ...]


def examine_machine() -> DoctorReport:
    """Look at Python, packages and GPUs, and judge every target by them."""
    local = find_gpus()
    packages = [Package(name, _find_version(name), use) for name, use in _PACKAGES.items()]
    packages += [
        Package(name, find_installed_version(name), use) for name, use in _FLAVOURS.items()
    ]
    return DoctorReport(
        python=platform.python_version(),
        platform=platform.platform(),
        packages=tuple(packages),
        local=local,
        targets=tuple(_judge_target(target, local) for target in TARGETS),
    )


def _judge_target(target: Target, local: LocalGpus) -> TargetReport:
    choice = find_builder(target, local)
    problem, fix = choice.problem, choice.fix
    if choice.flavour is not None and _find_version("onnx") is None:
        problem, fix = "onnx is not installed", "pip install 'quatrain[export]'"
    run_problem = _find_run_problem(target, local)
    return TargetReport(
        name=target.name,
        title=target.title,
        sm=target.sm,
        can_build=problem is None,
        flavour=choice.flavour,
        build_problem=problem,
        build_fix=fix,
        can_run=run_problem is None,
        run_problem=run_problem,
        note=target.support_note(choice.flavour or "tensorrt-rtx"),
    )


def _find_run_problem(target: Target, local: LocalGpus) -> str | None:
    if not local.gpus:
        return local.problem
    if all(gpu.sm != target.sm for gpu in local.gpus):
        here = ", ".join(f"{gpu.name} ({gpu.sm})" for gpu in local.gpus)
        return f"needs compute capability {target.sm}; here is {here}"
    if not any(find_installed_version(flavour) for flavour in _FLAVOURS):
        return "no TensorRT is installed (pip install 'quatrain[rtx]')"
    if _find_version("cuda-python") is None:
        return "cuda-python is not installed (pip install 'quatrain[gpu]')"
    return None


def _find_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
