"""Bills of memory as text, for the commands that show them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quatrain.exporter.table import format_bytes

if TYPE_CHECKING:
    from quatrain.exporter.memory import CacheBill, EmbeddingsPlace, WeightBill

__all__ = ["describe_cache", "describe_weights", "format_kib"]


def describe_weights(
    bills: "Sequence[WeightBill]", chosen: "EmbeddingsPlace | None" = None
) -> dict[str, str]:
    """A fact for each bill, named by the flag that asks for it; the chosen one is marked."""
    return {
        f"--embeddings {bill.embeddings}": _describe_bill(bill)
        + (" (chosen)" if bill.embeddings == chosen else "")
        for bill in bills
    }


def describe_cache(bill: "CacheBill") -> str:
    """What a token takes of the cache, and of which rows that is made up."""
    total = f"{format_kib(bill.bytes_per_token)} a token"
    if bill.rows_per_token == 1:
        return total
    rows = f"{bill.rows_per_token} rows of {format_kib(bill.bytes_per_row)}"
    if bill.num_one_row_layers:
        rows += f", but 1 row in {bill.num_one_row_layers} of {bill.num_layers} layers"
    return f"{total}: {rows}"


def format_kib(count: int) -> str:
    """A size in KiB, the unit in which the caches of models are told; below that in bytes."""
    if count < 1024:
        return f"{count} B"
    return f"{count / 1024:.2f}".rstrip("0").rstrip(".") + " KiB"


def _describe_bill(bill: "WeightBill") -> str:
    engines = f"{format_bytes(bill.engine_bytes)} of weights in engines"
    if bill.embeddings == "graph":
        return f"{engines}, 0 B on the host"
    tables = "1 table" if bill.num_tables == 1 else f"{bill.num_tables} tables"
    text = f"{engines}, {format_bytes(bill.host_bytes)} on the host ({tables})"
    return f"{text}; table 0 also stays in the engine as the head" if bill.is_table_kept else text
