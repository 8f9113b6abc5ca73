"""What the files of a sound bundle were held to, in a few words."""

from collections.abc import Mapping

from quatrain.exporter.commands.console import Console
from quatrain.exporter.table import count_things

__all__ = ["describe_comparisons", "show_comparisons"]

_WHOLE = "sha256"


def show_comparisons(comparisons: Mapping[str, str], console: Console) -> None:
    """Say that they came out well."""
    console.show(f"every file is as the manifest says:\n{describe_comparisons(comparisons)}")


def describe_comparisons(comparisons: Mapping[str, str]) -> str:
    """A line for each manner of comparing, those that leave something out first.

    `comparisons` are those of `runtime.bundle_check.list_comparisons`.
    """
    by_manner: dict[str, list[str]] = {}
    for path, manner in comparisons.items():
        by_manner.setdefault(manner, []).append(path)
    whole = len(by_manner.pop(_WHOLE, ()))
    lines = [_describe_part(manner, paths) for manner, paths in by_manner.items()]
    if whole:
        lines.append(f"  {count_things(whole, 'file')}: SHA-256")
    return "\n".join(lines)


def _describe_part(manner: str, paths: list[str]) -> str:
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    them = "them" if more else "it"
    return (
        f"  {paths[0]}{more}: {manner} only (export with --hash-weights to compare all of {them})"
    )
