"""Which engines of a bundle fit a GPU, and which profile of an engine fits a call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quatrain.runtime.errors import EngineError, RequestError
from quatrain.runtime.manifest import Engine, Manifest, Profile

__all__ = ["EngineSet", "choose_engines", "choose_profile", "require_engines"]

REBUILD = "build them for this GPU: quatrain build BUNDLE --target TARGET"


@dataclass(frozen=True, slots=True)
class EngineSet:
    """An engine for every graph, all for one SM and of one TensorRT."""

    sm: str
    flavour: str
    version: str
    engines: dict[str, Engine]


def choose_engines(manifest: Manifest, sm: str, installed: Mapping[str, str]) -> EngineSet:
    """The engines that run on this GPU with this TensorRT; officially supported ones first.

    Args:
        sm: Compute capability of the GPU, as in "8.6".
        installed: Version by flavour ("tensorrt-rtx", "tensorrt") of what is installed.

    Raises:
        EngineError: no flavour has an engine for every graph at this SM and version.
    """
    require_engines(manifest)
    asked = f"TensorRT engines for this GPU (SM {sm})"
    at_sm = [engine for engine in manifest.engines if engine.sm == sm]
    if not at_sm:
        kinds = ", ".join(sorted({f"{e.target} (SM {e.sm})" for e in manifest.engines}))
        raise EngineError(asked, f"the bundle has engines for {kinds} only", REBUILD)
    rebuild = f"quatrain build BUNDLE --target {at_sm[0].target}"
    fitting = [engine for engine in at_sm if installed.get(engine.flavour) == engine.version]
    if not fitting:
        built = ", ".join(sorted({f"{e.flavour} {e.version}" for e in at_sm}))
        here = ", ".join(f"{flavour} {version}" for flavour, version in installed.items())
        raise EngineError(
            asked,
            f"they were built with {built}, and installed is {here or 'no TensorRT'}",
            f"build them again with what is installed, {rebuild}, or install what they need",
        )
    first = max(fitting, key=lambda engine: engine.vendor_supported)
    engines = {e.graph: e for e in fitting if e.flavour == first.flavour}
    missing = sorted({graph.name for graph in manifest.graphs} - engines.keys())
    if missing:
        raise EngineError(asked, f"no engine for {', '.join(missing)}", rebuild)
    return EngineSet(sm, first.flavour, first.version, engines)


def require_engines(manifest: Manifest) -> None:
    """Raise `EngineError` for a bundle without engines."""
    if not manifest.engines:
        raise EngineError("run a bundle on TensorRT", "it holds no engines", REBUILD)


def choose_profile(profiles: Sequence[Profile], shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Index of the profile that allows these input shapes; a decode profile before a prefill one.

    Raises `RequestError` if none does.
    """
    order = sorted(range(len(profiles)), key=lambda index: profiles[index].name != "decode")
    for index in order:
        if _find_excess(profiles[index], shapes) is None:
            return index
    problems = (
        f"{profiles[index].name}: {_find_excess(profiles[index], shapes)}" for index in order
    )
    raise RequestError(
        "a call of a TensorRT engine",
        f"no profile allows it ({'; '.join(problems)})",
        "use smaller batches or chunks, backend='onnxruntime', or export with larger limits",
    )


def _find_excess(profile: Profile, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """The first input outside a profile, with its shape and the bounds."""
    for name, shape in shapes.items():
        smallest, _, largest = profile.shapes.get(name, [list(shape)] * 3)
        fits = len(shape) == len(smallest) and all(
            low <= size <= high for low, size, high in zip(smallest, shape, largest, strict=True)
        )
        if not fits:
            return f"{name} {list(shape)} is outside {smallest} to {largest}"
    return None
