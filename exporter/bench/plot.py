"""Tokens per second, and the time to the first, as bars: a group for each case."""

from quatrain.exporter.bench.report import BenchReport, BenchRun
from quatrain.exporter.charts import Chart, Series

__all__ = ["chart_report"]


def chart_report(report: BenchReport) -> list[Chart]:
    """How fast tokens come, above how long the first one takes."""
    places = [f"{n}+{m}" for n, m in dict.fromkeys(map(_name_case, report.runs))]
    bundles = dict.fromkeys(run.bundle for run in report.runs)
    return [
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


def _name_case(run: BenchRun) -> tuple[int, int]:
    return run.prompt_tokens, run.new_tokens
