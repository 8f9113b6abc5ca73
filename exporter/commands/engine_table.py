"""The engines of a bundle as a table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quatrain.exporter.table import Table, format_bytes

if TYPE_CHECKING:
    from quatrain.runtime.manifest import Engine

__all__ = ["make_engine_table"]


def make_engine_table(engines: "Sequence[Engine]") -> Table:
    """One row an engine file, for all its targets; below, what their vendor does not support."""
    files: dict[str, list[Engine]] = {}
    for engine in engines:
        files.setdefault(engine.path, []).append(engine)
    rows = [
        (
            shared[0].graph,
            ", ".join(engine.target for engine in shared),
            shared[0].sm,
            f"{shared[0].flavour} {shared[0].version}",
            format_bytes(shared[0].bytes),
            f"{shared[0].build_seconds:.1f}",
            ", ".join(f"{n} {name}" for name, n in shared[0].plugins.items()) or "-",
            "-" if shared[0].cache_updates is None else str(shared[0].cache_updates),
        )
        for shared in files.values()
    ]
    columns = ("graph", "targets", "SM", "TensorRT", "size", "seconds", "plugins", "cache updates")
    notes = tuple(dict.fromkeys(f"{e.target}: {e.note}" for e in engines if e.note))
    return Table(
        "Engines",
        columns,
        rows,
        numeric=frozenset({"size", "seconds", "cache updates"}),
        notes=notes,
    )
