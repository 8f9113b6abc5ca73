"""A chart as SVG: bars or lines over named places, with axes and a legend, and nothing else."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

__all__ = ["Chart", "Series", "draw_charts"]

_WIDTH, _HEIGHT = 880, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 20, 58, 52  # margins around the plot
_COLORS = ("#4269d0", "#efb118", "#ff725c")
_MAX_LABELS = 24
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.title{font-size:15px;font-weight:600}"
    ".grid{stroke:#ddd}.axis{stroke:#333}.mark{stroke:#777;stroke-dasharray:5 4}"
)


@dataclass(frozen=True, slots=True)
class Series:
    """One number for each place of its chart; None leaves a gap."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Chart:
    """`places` name the groups on the horizontal axis.

    Bars start at zero, lines at what fits them. `top` is the largest number on the vertical axis
    (None: what fits), `mark` a name and a number to draw a dashed line at.
    """

    title: str
    x_label: str
    y_label: str
    places: Sequence[str]
    series: Sequence[Series]
    is_bars: bool = False
    top: float | None = None
    mark: tuple[str, float] | None = None


def draw_charts(charts: Sequence[Chart]) -> str:
    """An SVG document with the charts one below the other."""
    height = _HEIGHT * len(charts)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}"'
        f' width="{_WIDTH}" height="{height}">',
        f"<style>{_STYLE}</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for place, chart in enumerate(charts):
        parts.append(f'<g transform="translate(0 {place * _HEIGHT})">')
        parts += _Drawing(chart).draw()
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


class _Drawing:
    """The elements of one chart, in a frame of its own."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        self.width = _WIDTH - _LEFT - _RIGHT
        self.height = _HEIGHT - _TOP - _BOTTOM
        self.step = self.width / max(1, len(chart.places))
        values = [v for s in chart.series for v in s.values if v is not None and math.isfinite(v)]
        if chart.mark is not None:
            values.append(chart.mark[1])
        self.ticks = _choose_ticks(values, chart)

    def draw(self) -> list[str]:
        title = _text(self.chart.title, _LEFT, 22, 'class="title"')
        parts = [title, *self._draw_legend(), *self._draw_axes()]
        for number, series in enumerate(self.chart.series):
            color = _COLORS[number % len(_COLORS)]
            if self.chart.is_bars:
                parts += self._draw_bars(series, number, color)
            else:
                parts += self._draw_line(series, color)
        if self.chart.mark is not None:
            y = self._y(self.chart.mark[1])
            parts.append(_line(_LEFT, y, _LEFT + self.width, y, "mark"))
        return parts

    def _x(self, place: float) -> float:
        return _LEFT + self.step * (place + 0.5)

    def _y(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        return _TOP + self.height * (1 - (value - low) / (high - low))

    def _draw_axes(self) -> list[str]:
        parts = []
        for tick in self.ticks:
            y = self._y(tick)
            parts.append(_line(_LEFT, y, _LEFT + self.width, y, "grid"))
            parts.append(_text(f"{tick:g}", _LEFT - 8, y + 4, 'text-anchor="end"'))
        bottom = _TOP + self.height
        parts.append(_line(_LEFT, bottom, _LEFT + self.width, bottom, "axis"))
        every = max(1, math.ceil(len(self.chart.places) / _MAX_LABELS))
        for place in range(0, len(self.chart.places), every):
            label = self.chart.places[place]
            parts.append(_text(label, self._x(place), bottom + 17, 'text-anchor="middle"'))
        middle = _LEFT + self.width / 2
        parts.append(_text(self.chart.x_label, middle, bottom + 38, 'text-anchor="middle"'))
        turned = f'text-anchor="middle" transform="rotate(-90 18 {_TOP + self.height / 2:g})"'
        return [*parts, _text(self.chart.y_label, 18, _TOP + self.height / 2, turned)]

    def _draw_legend(self) -> list[str]:
        parts: list[str] = []
        x = float(_LEFT)
        for number, series in enumerate(self.chart.series):
            color = _COLORS[number % len(_COLORS)]
            parts.append(f'<rect x="{x:g}" y="34" width="12" height="12" fill="{color}"/>')
            parts.append(_text(series.name, x + 18, 44))
            x += 44 + 6.6 * len(series.name)
        if self.chart.mark is not None:
            parts.append(_line(x, 40, x + 20, 40, "mark"))
            parts.append(_text(self.chart.mark[0], x + 26, 44))
        return parts

    def _draw_bars(self, series: Series, number: int, color: str) -> list[str]:
        width = min(0.8 * self.step / len(self.chart.series), 48.0)
        shift = (number - len(self.chart.series) / 2) * width
        parts = []
        for place, value in enumerate(series.values):
            if value is None or not math.isfinite(value):
                continue
            y = self._y(value)
            x, height = self._x(place) + shift, _TOP + self.height - y
            hint = escape(f"{self.chart.places[place]}: {series.name} {value:.4g}")
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width * 0.94:.1f}" height="{height:.1f}"'
                f' fill="{color}"><title>{hint}</title></rect>'
            )
        return parts

    def _draw_line(self, series: Series, color: str) -> list[str]:
        points = [
            (self._x(place), self._y(value), value)
            for place, value in enumerate(series.values)
            if value is not None and math.isfinite(value)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        parts = [f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>']
        for x, y, value in points:
            hint = escape(f"{series.name}: {value:.5g}")
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"><title>{hint}</title>'
                "</circle>"
            )
        return parts


def _choose_ticks(values: Sequence[float], chart: Chart) -> list[float]:
    """Four to eight round numbers around the values (1, 2 or 5 times a power of ten apart)."""
    low = 0.0 if chart.is_bars or not values else min(values)
    high = chart.top if chart.top is not None else max(values, default=1.0)
    if high <= low:
        low, high = low - abs(low) / 20 - 1e-9, low + abs(low) / 20 + 1e-9
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def _text(text: str, x: float, y: float, attributes: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" {attributes}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{kind}"/>'
