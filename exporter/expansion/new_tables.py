"""Which tables an expanded checkpoint gets: their names, and what each is a copy of."""

import re
from collections.abc import Mapping

from quatrain.exporter.checkpoint import LazyTensor
from quatrain.exporter.checkpoint.names import stream_table_name

__all__ = ["plan_tables"]

_NUMBER = re.compile(r"(.*?)([0-9]+)([^0-9]*)")


def plan_tables(
    tensors: Mapping[str, LazyTensor], num_streams: int, new_num_streams: int
) -> dict[str, LazyTensor]:
    """The source of every new table by the name it is to be stored under.

    Table s is a copy of table s mod `num_streams` (cyclic replication, arXiv 2607.08186).
    """
    tables = [tensors[stream_table_name(stream)] for stream in range(num_streams)]
    return {
        _stored_name(stream, tables): tables[stream % num_streams]
        for stream in range(num_streams, new_num_streams)
    }


def _stored_name(stream: int, tables: list[LazyTensor]) -> str:
    """A name that continues those of the extra tables there are: readers find tables by pattern."""
    last = len(tables) - 1
    match = _NUMBER.fullmatch(tables[last].stored_name) if last else None
    if match is None:
        return stream_table_name(stream)
    prefix, number, suffix = match.groups()
    return f"{prefix}{int(number) + stream - last}{suffix}"
