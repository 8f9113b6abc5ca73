"""Draws charts as SVG, in light and dark colours, with their titles for a screen reader."""

import math
import unicodedata
from collections.abc import Sequence
from xml.sax import saxutils

from quatrain.exporter.charts.axis import make_axis
from quatrain.exporter.charts.chart import Chart, Series

__all__ = ["CHART_STYLE", "draw_chart", "draw_charts"]

_WIDTH, _HEIGHT = 880, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 20, 58, 52  # margins around the plot
_LEGEND_ROW = 18
_MAX_LABELS = 24
_MAX_LABEL_CHARS = 110  # of all the labels along the horizontal axis, or of a row of the legend
_LIGHT, _DARK = (
    ("#4269d0", "#b87900", "#d9432b", "#1b8a6b", "#8549d6"),
    ("#8fa8f5", "#efb118", "#ff8a75", "#6cd4b4", "#c39bfa"),
)
# Series differ by their dashes, too, for whoever sees no colours.
_DASHES = ("none", "8 4", "2 3", "9 3 2 3", "14 4")


def _style_colors(colors: Sequence[str], ink: str, faint: str, paper: str) -> str:
    # Not by custom properties, which office programs and renderers do not know.
    series = "".join(
        f".chart .fill.s{i}{{fill:{color}}}.chart .line.s{i}{{stroke:{color}}}"
        for i, color in enumerate(colors)
    )
    return (
        f".chart text{{fill:{ink}}}.chart .axis{{stroke:{ink}}}.chart .grid{{stroke:{faint}}}"
        f".chart .mark{{stroke:{ink}}}.chart .paper{{fill:{paper}}}{series}"
    )


CHART_STYLE = (
    ".chart text{font:12px system-ui,sans-serif}.chart .title{font-size:15px;font-weight:600}"
    ".chart .mark{stroke-dasharray:5 4;opacity:.7}.chart .line{fill:none;stroke-width:2}"
    + "".join(f".chart .line.s{i}{{stroke-dasharray:{dash}}}" for i, dash in enumerate(_DASHES))
    + _style_colors(_LIGHT, ink="#333", faint="#ddd", paper="#fff")
    + "@media(prefers-color-scheme:dark){"
    + _style_colors(_DARK, ink="#ccc", faint="#3a3f47", paper="#16191d")
    + "}"
)


def draw_charts(charts: Sequence[Chart]) -> str:
    """An SVG document with the charts one below the other."""
    drawings = [_Drawing(chart) for chart in charts]
    height = sum(drawing.total_height for drawing in drawings)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {_WIDTH} {height}"'
        f' width="{_WIDTH}" height="{height}">',
        f"<style>{CHART_STYLE}</style>",
        '<rect width="100%" height="100%" class="paper"/>',
    ]
    top = 0
    for place, drawing in enumerate(drawings):
        parts.append(f'<g role="img" transform="translate(0 {top})">')
        parts += [*_describe(drawing.chart, f"chart-{place}"), *drawing.draw(), "</g>"]
        top += drawing.total_height
    return "\n".join([*parts, "</svg>", ""])


def draw_chart(chart: Chart, name: str) -> str:
    """One chart as an element of a page that has `CHART_STYLE`; `name` begins its ids there."""
    drawing = _Drawing(chart)
    return "\n".join(
        [
            f'<svg class="chart" viewBox="0 0 {_WIDTH} {drawing.total_height}" role="img"'
            f' aria-labelledby="{name}-title {name}-desc">',
            *_describe(chart, name),
            *drawing.draw(),
            "</svg>",
        ]
    )


def _describe(chart: Chart, name: str) -> list[str]:
    described = chart.description or f"{chart.y_label} by {chart.x_label}"
    return [
        f'<title id="{name}-title">{_escape(chart.title)}</title>',
        f'<desc id="{name}-desc">{_escape(described)}</desc>',
    ]


class _Drawing:
    """The elements of one chart, in a frame of its own."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        self.width = _WIDTH - _LEFT - _RIGHT
        self.height = _HEIGHT - _TOP - _BOTTOM
        self.step = self.width / max(1, len(chart.places))
        self.axis = make_axis(chart)
        names = [series.name for series in chart.series]
        names += [] if chart.mark is None else [chart.mark[0]]
        self.legend = _place_legend([_shorten(_printable(name)) for name in names])
        more = self.legend[-1][2] - self.legend[0][2] if self.legend else 0
        self.top = _TOP + more
        self.total_height = _HEIGHT + more

    def draw(self) -> list[str]:
        title = _text(self.chart.title, _LEFT, 22, 'class="title"')
        parts = [title, *self._draw_legend(), *self._draw_axes()]
        for number, series in enumerate(self.chart.series):
            kind = _choose_color(series, number)
            if self.chart.is_bars:
                parts += self._draw_bars(series, number, kind)
            else:
                parts += self._draw_line(series, kind)
        if self.chart.mark is not None:
            y = self._y(self.chart.mark[1])
            parts.append(_line(_LEFT, y, _LEFT + self.width, y, "mark"))
        return parts

    def _x(self, place: float) -> float:
        return _LEFT + self.step * (place + 0.5)

    def _y(self, value: float) -> float:
        return self.top + self.height * (1 - self.axis.fraction(value))

    def _draw_axes(self) -> list[str]:
        parts = []
        for tick in self.axis.ticks:
            y = self._y(tick)
            parts.append(_line(_LEFT, y, _LEFT + self.width, y, "grid"))
            parts.append(_text(f"{tick:g}", _LEFT - 8, y + 4, 'text-anchor="end"'))
        bottom = self.top + self.height
        parts.append(_line(_LEFT, bottom, _LEFT + self.width, bottom, "axis"))
        for place in range(0, len(self.chart.places), self._label_every()):
            label = self.chart.places[place]
            parts.append(_text(label, self._x(place), bottom + 17, 'text-anchor="middle"'))
        middle = _LEFT + self.width / 2
        parts.append(_text(self.chart.x_label, middle, bottom + 38, 'text-anchor="middle"'))
        turned = f'text-anchor="middle" transform="rotate(-90 18 {self.top + self.height / 2:g})"'
        return [*parts, _text(self.chart.y_label, 18, self.top + self.height / 2, turned)]

    def _label_every(self) -> int:
        """Every how many places there is room for a label, at least a space from the next."""
        widest = max(map(len, self.chart.places), default=0) + 1
        room = max(1, min(_MAX_LABELS, _MAX_LABEL_CHARS // widest))
        return max(1, math.ceil(len(self.chart.places) / room))

    def _draw_legend(self) -> list[str]:
        parts: list[str] = []
        for number, (name, x, y) in enumerate(self.legend):
            if number == len(self.chart.series):
                parts.append(_line(x, y + 6, x + 24, y + 6, "mark"))
            else:
                kind = _choose_color(self.chart.series[number], number)
                if self.chart.is_bars:
                    box = f'<rect x="{x:g}" y="{y:g}" width="24" height="12" class="fill {kind}"/>'
                    parts.append(box)
                else:
                    parts.append(_line(x, y + 6, x + 24, y + 6, f"line {kind}"))
            parts.append(_text(name, x + 30, y + 10))
        return parts

    def _draw_bars(self, series: Series, number: int, kind: str) -> list[str]:
        width = min(0.8 * self.step / len(self.chart.series), 48.0)
        shift = (number - len(self.chart.series) / 2) * width
        parts = []
        for place, value in _list_finite(series):
            y = self._y(value)
            x, height = self._x(place) + shift, self.top + self.height - y
            hint = _escape(f"{self.chart.places[place]}: {series.name} {value:.4g}")
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width * 0.94:.1f}" height="{height:.1f}"'
                f' class="fill {kind}"><title>{hint}</title></rect>'
            )
        return parts

    def _draw_line(self, series: Series, kind: str) -> list[str]:
        points = [(self._x(place), self._y(v), place, v) for place, v in _list_finite(series)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in points)
        parts = [f'<polyline points="{path}" class="line {kind}"/>']
        radius = min(4.0, max(1.5, self.step / 3))
        for x, y, place, value in points:
            hint = _escape(f"{self.chart.places[place]}: {series.name} {value:.5g}")
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" class="fill {kind}">'
                f"<title>{hint}</title></circle>"
            )
        return parts


def _place_legend(names: Sequence[str]) -> list[tuple[str, float, int]]:
    """Where each name goes, in as many rows as they need."""
    places: list[tuple[str, float, int]] = []
    x, y = float(_LEFT), 34
    for name in names:
        width = 56 + 6.6 * _count_columns(name)
        if x > _LEFT and x + width - 26 > _WIDTH - _RIGHT:
            x, y = float(_LEFT), y + _LEGEND_ROW
        places.append((name, x, y))
        x += width
    return places


def _shorten(name: str) -> str:
    """The end of a name that no row has room for: that is where paths differ."""
    while _count_columns(name) > _MAX_LABEL_CHARS:
        name = "\N{HORIZONTAL ELLIPSIS}" + name[2:]
    return name


def _count_columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _choose_color(series: Series, number: int) -> str:
    return f"s{(number if series.color is None else series.color) % len(_LIGHT)}"


def _list_finite(series: Series) -> list[tuple[int, float]]:
    return [
        (place, value)
        for place, value in enumerate(series.values)
        if value is not None and math.isfinite(value)
    ]


def _text(text: str, x: float, y: float, attributes: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" {attributes}>{_escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{kind}"/>'


def _escape(text: str) -> str:
    """For XML, which has no place for control characters or the stray bytes of file names."""
    return saxutils.escape(_printable(text))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
