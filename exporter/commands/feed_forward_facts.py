"""The width axis as text, for the commands that show it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from quatrain.exporter.table import format_bytes

if TYPE_CHECKING:
    from quatrain.exporter.feed_forward_bill import FeedForwardBill

__all__ = ["describe_feed_forward"]


def describe_feed_forward(banks: object, bill: "FeedForwardBill | None" = None) -> dict[str, str]:
    """A fact for the banks, as `describe_spec` has them, and one for their bill; none for a
    decoder without banks."""
    if not isinstance(banks, Mapping):
        return {}
    facts = {"feed-forward": _describe_banks(banks)}
    if bill is not None:
        facts["FFN weights"] = (
            f"{format_bytes(bill.row_bytes)} of {format_bytes(bill.dense_bytes)} in a decode step"
            f" of one row ({bill.row_bytes / bill.dense_bytes:.1%}), if active channels are"
            " gathered"
        )
    return facts


def _describe_banks(banks: Mapping[str, object]) -> str:
    rank, activation = banks.get("predictor_rank"), banks.get("predictor_activation")
    predictor = "no predictor" if rank is None else f"predictor rank {rank}"
    if activation is not None:
        predictor += f" ({activation})"
    layers = banks.get("dense_fallback_layers")
    dense = ", ".join(map(str, layers)) if isinstance(layers, list) else ""
    return (
        f"{banks.get('top_k')} of {banks.get('bank_size')} channels, {predictor},"
        f" {banks.get('gate_mode')} gate, dense in {f'layers {dense}' if dense else 'no layer'}"
    )
