"""A comparison as one HTML file that needs nothing else: no network, no scripts, no other file."""

from collections.abc import Sequence
from html import escape

from quatrain.exporter.charts import CHART_STYLE, draw_chart
from quatrain.exporter.comparison.report.plots import Plot, list_plots
from quatrain.exporter.comparison.report.style import PAGE_STYLE
from quatrain.exporter.comparison.report.tables import (
    make_case_table,
    make_check_table,
    make_divergence_table,
    make_flip_table,
    make_layer_table,
    make_runner_table,
)
from quatrain.exporter.comparison.report.verdict import describe_verdict
from quatrain.exporter.comparison.result import Comparison
from quatrain.exporter.table import Table

__all__ = ["make_page"]

# Should anything ever slip in that would load something, the browser refuses it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def make_page(comparison: Comparison) -> str:
    """The whole document."""
    outcome = "passed" if comparison.passed else "failed"
    title = f"Comparison {outcome}: {comparison.bundle}"
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(title)}</title>",
            f"<style>{PAGE_STYLE}{CHART_STYLE}</style>\n</head>\n<body>\n<main>",
            *_draw_head(comparison, outcome),
            *_draw_tables(comparison),
            *_draw_plots(comparison),
            "</main>\n</body>\n</html>\n",
        ]
    )


def _draw_head(comparison: Comparison, outcome: str) -> list[str]:
    facts = {
        "bundle": comparison.bundle,
        "checkpoint": comparison.checkpoint,
        "reference": comparison.reference,
        "family": comparison.family,
        "took": f"{comparison.seconds:.1f} s",
    }
    rows = [f"<dt>{name}</dt><dd>{escape(fact)}</dd>" for name, fact in facts.items()]
    return [
        "<header>",
        f'<h1><span class="badge {outcome}">{outcome.capitalize()}</span> Bundle and checkpoint'
        " compared</h1>",
        f'<p class="verdict">{escape(describe_verdict(comparison))}</p>',
        f"<dl>{''.join(rows)}</dl>",
        "</header>",
    ]


def _draw_tables(comparison: Comparison) -> list[str]:
    tables = [
        make_divergence_table(comparison),
        make_check_table(comparison),
        make_runner_table(comparison),
        make_flip_table(comparison),
        make_case_table(comparison),
    ]
    return [_draw_section(table) for table in tables if table.rows]


def _draw_plots(comparison: Comparison) -> list[str]:
    plots = list_plots(comparison)
    parts = [_draw_plot(plot) for plot in plots]
    layers = make_layer_table(comparison)
    if layers.rows:
        parts.append(f"<details><summary>{layers.title}</summary>{_draw_table(layers)}</details>")
    elif plots:
        parts.append(
            "<p>Errors layer by layer are looked at where something failed, or with"
            " <code>quatrain compare --layers</code>.</p>"
        )
    return ["<section>", "<h2>Plots</h2>", *parts, "</section>"] if parts else []


def _draw_plot(plot: Plot) -> str:
    return "\n".join(
        [
            "<figure>",
            draw_chart(plot.chart, f"plot-{plot.name}"),
            f"<figcaption>{escape(plot.caption)}</figcaption>",
            f"<details><summary>The numbers: {escape(plot.chart.title)}</summary>",
            _draw_table(plot.table),
            "</details>\n</figure>",
        ]
    )


def _draw_section(table: Table) -> str:
    notes = "".join(f"<p>{escape(note)}</p>" for note in table.notes)
    return f"<section>\n<h2>{escape(table.title)}</h2>\n{_draw_table(table)}{notes}\n</section>"


def _draw_table(table: Table) -> str:
    """The table in a frame that scrolls sideways, by keyboard, too, on a narrow screen."""
    title = escape(table.title)
    heads = [
        f'<th scope="col"{_align(table, column)}>{escape(column)}</th>' for column in table.columns
    ]
    rows = "\n".join(_draw_row(table, number, row) for number, row in enumerate(table.rows))
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}"><table>'
        f"<caption>{title}</caption><thead><tr>{''.join(heads)}</tr></thead>"
        f"<tbody>\n{rows}\n</tbody></table></div>"
    )


def _draw_row(table: Table, number: int, row: Sequence[str]) -> str:
    kind = ' class="alarm"' if number in table.alarming else ""
    first = f'<th scope="row"{_align(table, table.columns[0])}>{escape(row[0])}</th>'
    cells = [
        f"<td{_align(table, column)}>{escape(cell)}</td>"
        for column, cell in zip(table.columns[1:], row[1:], strict=True)
    ]
    return f"<tr{kind}>{first}{''.join(cells)}</tr>"


def _align(table: Table, column: str) -> str:
    return ' class="number"' if column in table.numeric else ""
