"""What a chart shows: bars or lines over named places."""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Chart", "Series"]


@dataclass(frozen=True, slots=True)
class Series:
    """One number for each place of its chart; None leaves a gap.

    `color` counts the colours that there are (None: that of its place among the series).
    """

    name: str
    values: Sequence[float | None]
    color: int | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """`places` name the groups on the horizontal axis.

    Bars start at zero, lines at what fits them; with `is_log` both start at a power of ten, and
    zero is drawn there, too. `top` is the largest number on the vertical axis (None: what fits),
    `mark` a name and a number to draw a dashed line at. `description` is read out by a screen
    reader, and seen by nobody else.
    """

    title: str
    x_label: str
    y_label: str
    places: Sequence[str]
    series: Sequence[Series]
    is_bars: bool = False
    top: float | None = None
    mark: tuple[str, float] | None = None
    is_log: bool = False
    description: str = ""
