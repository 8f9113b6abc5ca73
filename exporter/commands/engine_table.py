"""The engines of a bundle as a table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quatrain.exporter.table import Table, count_things, format_bytes
from quatrain.exporter.targets import TARGETS

if TYPE_CHECKING:
    from quatrain.runtime.manifest import Engine

__all__ = ["count_engines", "make_engine_table"]


def count_engines(engines: "Sequence[Engine]") -> str:
    """Their files, which targets of one compute capability share, and the targets."""
    files = count_things(len({engine.path for engine in engines}), "engine file")
    return f"{files} for {count_things(len({engine.target for engine in engines}), 'target')}"


def make_engine_table(engines: "Sequence[Engine]") -> Table:
    """One row an engine file, for all its targets; below, each note once: what their vendor does
    not support, and what TensorRT has no kernel for."""
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
    return Table(
        "Engines",
        columns,
        rows,
        numeric=frozenset({"size", "seconds", "cache updates"}),
        notes=_list_notes(engines),
    )


def _list_notes(engines: "Sequence[Engine]") -> list[str]:
    targets: dict[str, list[str]] = {}
    for engine in engines:
        for note in _split_note(engine):
            targets.setdefault(note, []).append(engine.target)
    return [f"{', '.join(dict.fromkeys(names))}: {note}" for note, names in targets.items()]


def _split_note(engine: "Engine") -> list[str]:
    """What the vendor says of the target, which all its engines have, and what is the graph's."""
    note = engine.note or ""
    support = next((t.support_note(engine.flavour) for t in TARGETS if t.name == engine.target), "")
    if not support or not note.startswith(support):
        return [note] if note else []
    rest = note.removeprefix(support).removeprefix("; ")
    return [support, rest] if rest else [support]
