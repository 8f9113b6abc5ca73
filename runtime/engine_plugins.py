"""The plugins that engines need: registered, looked for, and asked what went wrong."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quatrain.plugins.registry import describe_registered, register, take_problems
from quatrain.runtime.errors import EngineError
from quatrain.runtime.manifest import Engine

__all__ = ["raise_plugin_problems", "require_plugins"]


def require_plugins(library: Any, bundle: Path, engines: Sequence[Engine]) -> None:
    """Register our plugins, if engines need any, before these are deserialized.

    Raises `EngineError` that names the plugins that an engine needs and nobody registered, with
    their versions and namespaces, and those that are registered.

    Args:
        library: The module `tensorrt` or `tensorrt_rtx`.
    """
    if not any(engine.plugins for engine in engines):
        return
    register(library)
    registered = describe_registered(library)
    for engine in engines:
        missing = [name for name in engine.plugins if name not in registered]
        if missing:
            raise EngineError(
                f"load the engine {bundle / engine.path}",
                f"it needs the plugins {', '.join(missing)}; registered are "
                f"{', '.join(registered) or 'none'}",
                "install the quatrain that built it, or build it again with this one: "
                f"quatrain build {bundle} --target {engine.target}",
            )


def raise_plugin_problems(asked: str, fix: str) -> None:
    """Raise what our plugins refused, if they did; TensorRT only says that something failed."""
    problems = take_problems()
    if problems:
        raise EngineError(asked, "; ".join(map(str, problems)), fix)
