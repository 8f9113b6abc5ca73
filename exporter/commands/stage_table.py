"""The stages of long work as a table."""

from collections.abc import Sequence

from quatrain.exporter.progress import Stage
from quatrain.exporter.table import Table, format_bytes

__all__ = ["make_stage_table"]


def make_stage_table(stages: Sequence[Stage]) -> Table:
    """One row a stage, and their sum; peak memory is the process's highest so far."""
    rows = [
        (
            stage.name,
            f"{stage.seconds:.2f}",
            format_bytes(stage.bytes),
            format_bytes(stage.peak_rss_bytes),
        )
        for stage in stages
    ]
    seconds = sum(stage.seconds for stage in stages)
    peak = max((stage.peak_rss_bytes for stage in stages), default=0)
    rows.append(("total", f"{seconds:.2f}", "", format_bytes(peak)))
    columns = ("stage", "seconds", "size", "peak memory")
    return Table("Stages", columns, rows, numeric=frozenset(columns[1:]))
