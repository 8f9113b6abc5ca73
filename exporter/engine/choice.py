"""Which TensorRT can build for a target here: what is installed, and what each needs."""

import importlib.metadata
import importlib.util
from dataclasses import dataclass

from quatrain.exporter.errors import BuildError
from quatrain.exporter.local_gpu import LocalGpus
from quatrain.exporter.targets import Flavour, Target

__all__ = ["MODULES", "BuilderChoice", "find_builder", "find_installed_version", "require_builder"]

MODULES: dict[Flavour, str] = {"tensorrt-rtx": "tensorrt_rtx", "tensorrt": "tensorrt"}
_DISTRIBUTIONS: dict[Flavour, tuple[str, ...]] = {
    "tensorrt-rtx": ("tensorrt-rtx-cu12", "tensorrt-rtx-cu13", "tensorrt-rtx"),
    "tensorrt": ("tensorrt-cu12", "tensorrt-cu13", "tensorrt"),
}
_INSTALL: dict[Flavour, str] = {
    "tensorrt-rtx": "pip install 'quatrain[rtx]'",
    "tensorrt": "install TensorRT from its vendor's index",
}


@dataclass(frozen=True, slots=True)
class BuilderChoice:
    """The TensorRT that can build for a target, or why none can and what to do about it."""

    flavour: Flavour | None
    problem: str | None = None
    fix: str | None = None


def find_installed_version(flavour: Flavour) -> str | None:
    """The installed version, found without importing it ("unknown" outside a wheel)."""
    for name in _DISTRIBUTIONS[flavour]:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown" if importlib.util.find_spec(MODULES[flavour]) else None


def find_builder(target: Target, local: LocalGpus, flavour: Flavour | None = None) -> BuilderChoice:
    """Choose what builds for `target` on this machine.

    TensorRT-RTX builds for any target without a GPU. Classic TensorRT builds only for the GPU it
    runs on, and goes first where the vendor supports nothing else.
    """
    problems = {name: _find_problem(name, target, local) for name in MODULES}
    wanted: list[Flavour] = list(MODULES) if flavour is None else [flavour]
    wanted.sort(key=lambda name: not target.is_supported(name))
    for name in wanted:
        if problems[name] is None:
            return BuilderChoice(name)
    reason = "; ".join(f"{name}: {problems[name]}" for name in wanted)
    return BuilderChoice(None, reason, _suggest_fix(wanted, target))


def require_builder(target: Target, local: LocalGpus, flavour: Flavour | None = None) -> Flavour:
    """As `find_builder`; raises `BuildError` where nothing here can build for `target`."""
    choice = find_builder(target, local, flavour)
    if choice.flavour is None:
        raise BuildError(f"an engine for {target.name}", choice.problem or "", choice.fix or "")
    return choice.flavour


def _find_problem(flavour: Flavour, target: Target, local: LocalGpus) -> str | None:
    if find_installed_version(flavour) is None:
        return "not installed"
    if flavour == "tensorrt-rtx":
        return None
    if not local.gpus:
        return f"builds only on the GPU itself, and {local.problem}"
    # The builder works on CUDA's current device, which is the first unless told otherwise.
    gpu = local.gpus[0]
    if gpu.sm != target.sm:
        return f"builds only for the GPU here, {gpu.name} ({gpu.sm}), not for {target.sm}"
    return None


def _suggest_fix(wanted: list[Flavour], target: Target) -> str:
    if "tensorrt-rtx" in wanted:
        return f"{_INSTALL['tensorrt-rtx']}: it builds for {target.name} without a GPU"
    return f"{_INSTALL['tensorrt']} on a machine with {target.title}, and build there"
