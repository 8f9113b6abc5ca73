"""The engines of a bundle as a table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quatrain.exporter.commands.table import Table, format_bytes

if TYPE_CHECKING:
    from quatrain.runtime.manifest import Engine

__all__ = ["make_engine_table"]


def make_engine_table(engines: "Sequence[Engine]") -> Table:
    """One row an engine, and below it what its vendor does not support."""
    rows = [
        (
            engine.target,
            engine.graph,
            engine.sm,
            f"{engine.flavour} {engine.version}",
            format_bytes(engine.bytes),
            f"{engine.build_seconds:.1f}",
            ", ".join(engine.plugins) or "-",
            engine.path,
        )
        for engine in engines
    ]
    columns = ("target", "graph", "SM", "TensorRT", "size", "seconds", "plugins", "file")
    notes = tuple(dict.fromkeys(f"{e.target}: {e.note}" for e in engines if e.note))
    return Table("Engines", columns, rows, numeric=frozenset({"size", "seconds"}), notes=notes)
