"""The vertical axis of a chart: its ticks, and where on it a number is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from quatrain.exporter.charts.chart import Chart

__all__ = ["Axis", "make_axis"]

_MAX_POWERS = 8


@dataclass(frozen=True, slots=True)
class Axis:
    """Ticks from the lowest to the highest number that is on the axis."""

    ticks: Sequence[float]
    is_log: bool = False

    def fraction(self, value: float) -> float:
        """How far up the axis a number is, 0 to 1; a log axis has zero and less at its foot."""
        low, high = self.ticks[0], self.ticks[-1]
        if not self.is_log:
            return (value - low) / (high - low)
        if value <= low:
            return 0.0
        return math.log(value / low) / math.log(high / low)


def make_axis(chart: Chart) -> Axis:
    """The axis that all numbers of a chart fit on."""
    values = [v for s in chart.series for v in s.values if v is not None and math.isfinite(v)]
    if chart.mark is not None:
        values.append(chart.mark[1])
    if chart.is_log:
        ticks = _choose_powers([value for value in values if value > 0])
        # A bar of the lowest number must be seen, too.
        return Axis([ticks[0] / 10, *ticks] if chart.is_bars else ticks, is_log=True)
    low = 0.0 if chart.is_bars or not values else min(values)
    high = chart.top if chart.top is not None else max(values, default=1.0)
    return Axis(_choose_round_numbers(low, high))


def _choose_round_numbers(low: float, high: float) -> list[float]:
    """Four to eight round numbers around a range (1, 2 or 5 times a power of ten apart)."""
    if high <= low:
        low, high = low - abs(low) / 20 - 1e-9, low + abs(low) / 20 + 1e-9
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def _choose_powers(values: Sequence[float]) -> list[float]:
    """Powers of ten around positive numbers, evenly far apart; at least two."""
    first = math.floor(math.log10(min(values, default=1.0)) + 1e-9)
    last = math.ceil(math.log10(max(values, default=1.0)) - 1e-9)
    last = max(last, first + 1)
    step = math.ceil((last - first) / _MAX_POWERS)
    return [float(f"1e{power}") for power in range(first, last + step, step)]
