"""Charts as SVG: for a report on one's own machine, without a plotting library."""

from quatrain.exporter.charts.chart import Chart, Series
from quatrain.exporter.charts.svg import CHART_STYLE, draw_chart, draw_charts

__all__ = ["CHART_STYLE", "Chart", "Series", "draw_chart", "draw_charts"]
