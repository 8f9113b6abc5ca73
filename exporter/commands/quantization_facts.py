"""How weights became codes, for a reader."""

__all__ = ["describe_codes"]


def describe_codes(kind: str, group_size: int | None, head_bits: int | None) -> str:
    """One line: what is stored as what."""
    heads = "as they are" if head_bits == 16 else f"as int{head_bits}"
    return f"projections as {kind}, heads {heads}, a scale for {group_size} weights"
