"""What of a comparison there is to draw, each chart with its numbers as a table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from quatrain.exporter.charts import Chart, Series
from quatrain.exporter.comparison.report.verdict import format_number
from quatrain.exporter.comparison.result import Comparison, Histogram
from quatrain.exporter.comparison.tolerances import find_kind
from quatrain.exporter.table import Table

__all__ = ["Plot", "list_plots"]


# What an error grows along; caches and the like are in the table.
_ALONG_THE_LAYERS = ("residual", "state", "logits")


@dataclass(frozen=True, slots=True)
class Plot:
    """A chart, what to look for in it, and its numbers."""

    name: str
    chart: Chart
    caption: str
    table: Table


def list_plots(comparison: Comparison) -> list[Plot]:
    """The charts that have something in them."""
    plots = comparison.plots
    found = [
        _plot_layers(comparison) if comparison.layer_errors else None,
        _plot_divergence(plots.kl_per_position) if plots.kl_per_position else None,
        *(_plot_differences(name, bins) for name, bins in plots.logit_differences.items()),
        _plot_exits(plots.exit_shares) if plots.exit_shares else None,
        _plot_selection(plots.selection_overlap) if plots.selection_overlap else None,
    ]
    colors = {name: color for color, name in enumerate(_list_sides(comparison))}
    return [_color(plot, colors) for plot in found if plot is not None]


def _list_sides(comparison: Comparison) -> list[str]:
    compared = [runner.name for runner in comparison.runners if runner.status == "compared"]
    return [*compared, "reference"]


def _color(plot: Plot, colors: Mapping[str, int]) -> Plot:
    """The same with every runner in its own colour, whichever others are in the chart."""
    series = [replace(found, color=colors.get(found.name)) for found in plot.chart.series]
    return replace(plot, chart=replace(plot.chart, series=series))


def _plot_layers(comparison: Comparison) -> Plot:
    found = comparison.layer_errors
    along = [error for error in found if find_kind(error.tensor) in _ALONG_THE_LAYERS] or found
    tensors = list(dict.fromkeys(error.tensor for error in along))
    errors: dict[str, dict[str, float]] = {}
    for error in along:
        errors.setdefault(error.runner, {})[error.tensor] = error.relative
    chart = Chart(
        title="Error of each tensor, in the order of computation",
        x_label="tensor (number: layer)",
        y_label="relative error",
        places=[tensor.removeprefix("layers.") for tensor in tensors],
        series=[
            Series(runner, [relative.get(tensor) for tensor in tensors])
            for runner, relative in errors.items()
        ],
        is_log=True,
        description=_describe_largest(
            {runner: list(relative.values()) for runner, relative in errors.items()}
        ),
    )
    caption = (
        "Largest difference from the reference, divided by the reference's largest magnitude."
        " Where it leaps by orders of magnitude and stays up, something goes wrong."
        " Zero is drawn at the foot."
    )
    return _make_plot("layers", chart, caption, "tensor")


def _plot_divergence(values: Mapping[str, Sequence[float]]) -> Plot:
    chart = Chart(
        title="KL divergence of the next-token distribution",
        x_label="position (tokens)",
        y_label="KL (nats)",
        places=_number_places(values.values()),
        series=[Series(runner, numbers) for runner, numbers in values.items()],
        is_log=True,
        description=_describe_largest(values),
    )
    caption = "How far the distribution is from the reference's, at each position of the longest"
    return _make_plot("kl", chart, f"{caption} sequence. Zero is drawn at the foot.", "position")


def _plot_differences(runner: str, bins: Histogram) -> Plot:
    pairs = list(zip(bins.edges, bins.edges[1:], strict=False))
    total = sum(bins.counts)
    chart = Chart(
        title=f"Differences of logits, {runner}",
        x_label="logit minus the reference's (middle of the bin)",
        y_label="logits",
        places=[f"{(low + high) / 2:.1e}" for low, high in pairs],
        series=[Series(runner, bins.counts)],
        is_bars=True,
        is_log=True,
        description=f"{total:,} logits in {len(pairs)} bins from {bins.edges[0]:.3g} to"
        f" {bins.edges[-1]:.3g}",
    )
    caption = "Rounding gives one hill around zero; a hill beside zero, or a second, is a mistake."
    return _make_plot(f"logits-{runner}", chart, caption, "difference")


def _plot_exits(shares: Mapping[str, Sequence[float]]) -> Plot:
    chart = Chart(
        title="Where tokens leave",
        x_label="exit",
        y_label="mean probability",
        places=_number_places(shares.values()),
        series=[Series(runner, numbers) for runner, numbers in shares.items()],
        is_bars=True,
        top=1.0,
        description="; ".join(
            f"{runner}: {', '.join(f'{share:.1%}' for share in numbers)}"
            for runner, numbers in shares.items()
        ),
    )
    return _make_plot("exits", chart, "The bars of an exit should be equally high.", "exit")


def _plot_selection(overlap: Mapping[str, Mapping[int, float]]) -> Plot:
    layers = sorted({layer for found in overlap.values() for layer in found})
    lowest = min((share for found in overlap.values() for share in found.values()), default=1.0)
    chart = Chart(
        title="Channels chosen as the reference chooses them",
        x_label="layer",
        y_label="share in common",
        places=[str(layer) for layer in layers],
        series=[
            Series(runner, [found.get(layer) for layer in layers])
            for runner, found in overlap.items()
        ],
        description=f"the lowest share is {lowest:.2%}",
    )
    caption = "1 where all active channels are the reference's; channels of equal logits may swap."
    return _make_plot("selection", chart, caption, "layer")


def _make_plot(name: str, chart: Chart, caption: str, place: str) -> Plot:
    columns = (place, *(series.name for series in chart.series))
    rows = [
        (label, *(_show_value(series.values, number) for series in chart.series))
        for number, label in enumerate(chart.places)
    ]
    table = Table(chart.title, columns, rows, numeric=frozenset(columns[1:]))
    return Plot(name, chart, caption, table)


def _show_value(values: Sequence[float | None], number: int) -> str:
    value = values[number] if number < len(values) else None
    return "" if value is None else format_number(value)


def _number_places(values: Iterable[Sequence[float]]) -> list[str]:
    return [str(place) for place in range(max(map(len, values), default=0))]


def _describe_largest(values: Mapping[str, Sequence[float]]) -> str:
    parts = [f"{runner} is at most {max(found):.3g}" for runner, found in values.items() if found]
    return "; ".join(parts)
