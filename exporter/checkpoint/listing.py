"""Long lists in short messages."""

from collections.abc import Sequence

__all__ = ["shorten"]


def shorten(items: Sequence[str], limit: int = 12) -> str:
    """Join the first `limit` items; say how many more there are."""
    more = len(items) - limit
    return ", ".join(items[:limit]) + (f", +{more} more" if more > 0 else "")
