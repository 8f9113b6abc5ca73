"""Tokens per second as bars, a group for each case."""

from pathlib import Path

from quatrain.exporter.bench.report import BenchReport, BenchRun
from quatrain.exporter.bundle import write_file
from quatrain.exporter.charts import Chart, Series, draw_charts
from quatrain.runtime.errors import RequestError

__all__ = ["check_plot_path", "plot_report"]


def check_plot_path(path: Path) -> None:
    """Raise `RequestError` for what could not be written after all that measuring."""
    if path.suffix.lower() != ".svg":
        raise RequestError(
            f"a plot in {path} (--plot)",
            "charts are drawn as SVG, which browsers and office programs show",
            f"name it {path.with_suffix('.svg').name}",
        )
    if not path.absolute().parent.is_dir():
        raise RequestError(
            f"a plot in {path} (--plot)", "there is no such folder", "name one that exists"
        )
    if path.is_dir():
        raise RequestError(f"a plot in {path} (--plot)", "that is a folder", "name a file")


def plot_report(report: BenchReport, path: Path) -> None:
    """Write the chart."""
    places = [f"{n}+{m}" for n, m in dict.fromkeys(map(_name_case, report.runs))]
    bundles = dict.fromkeys(run.bundle for run in report.runs)
    charts = [
        Chart(
            title=title,
            x_label="tokens of prompt + new tokens",
            y_label=unit,
            places=places,
            series=[
                Series(name, [getattr(run, fact) for run in report.runs if run.bundle == name])
                for name in bundles
            ],
            is_bars=True,
        )
        for title, unit, fact in (
            ("Decoding", "tokens/s", "tokens_per_second"),
            ("Time to first token", "ms", "time_to_first_token_ms"),
        )
    ]
    write_file(path, draw_charts(charts).encode())


def _name_case(run: BenchRun) -> tuple[int, int]:
    return run.prompt_tokens, run.new_tokens
