"""What an export is refused for before anything is read, and so by a dry run, too."""

from collections.abc import Sequence
from pathlib import Path

from quatrain.exporter.bundle import WeightsMode, check_bundle_place
from quatrain.exporter.engine.plugin_choice import parse_plugins
from quatrain.exporter.errors import ExportError
from quatrain.exporter.staging import check_place

__all__ = ["check_export"]


def check_export(
    checkpoint: Path,
    output: Path,
    *,
    targets: Sequence[str] = (),
    plugins: Sequence[str] | None = None,
    weights: WeightsMode | None = None,
    quantize: str | None = None,
    overwrite: bool = False,
) -> None:
    """Look at those arguments of `export_checkpoint` that its plan does not depend on.

    Raises:
        ExportError: There is no place for the bundle, or arguments do not go together.
        BuildError: `plugins` has something else than modes.
    """
    check_bundle_place(output, overwrite=overwrite)
    check_place(output, "a bundle")
    if plugins:
        parse_plugins(plugins)
        _check_engines(plugins, targets)
    if weights == "link" and quantize is not None:
        raise ExportError(
            f"link the weights of {checkpoint} (--weights link) and quantize them",
            "codes are not in the checkpoint's files",
            "leave --weights out",
        )


def _check_engines(plugins: Sequence[str], targets: Sequence[str]) -> None:
    if not targets:
        raise ExportError(
            f"--plugins {' '.join(plugins)}",
            "plugins are of engines, and no target was given that any are built for",
            "give a --target, or leave --plugins out; `quatrain build` takes it, too",
        )
