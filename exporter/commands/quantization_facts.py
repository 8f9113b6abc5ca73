"""How weights became codes, for a reader."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quatrain.runtime.manifest_records import Quantization

__all__ = ["describe_codes", "name_codes"]


def describe_codes(kind: str, group_size: int | None, head_bits: int | None) -> str:
    """One line: what is stored as what."""
    heads = "as they are" if head_bits == 16 else f"as int{head_bits}"
    return f"projections as {kind}, heads {heads}, a scale for {group_size} weights"


def name_codes(quantization: "Quantization | None") -> str | None:
    """Their kind; None of weights that stayed as they are."""
    return None if quantization is None else quantization.kind
