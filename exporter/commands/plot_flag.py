"""The flag of commands that also draw what they found: looked at first, obeyed at the end."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quatrain.exporter.commands.console import Console
from quatrain.exporter.commands.path_flag import read_path

if TYPE_CHECKING:
    from quatrain.exporter.charts import Chart

__all__ = ["add_plot_flag", "check_plot", "draw_plot"]


def add_plot_flag(group: argparse._ActionsContainer) -> None:
    """Declare --plot."""
    group.add_argument(
        "--plot",
        type=read_path,
        metavar="FILE",
        help="also draw it into this file: .svg, or .png (which needs quatrain[png])",
    )


def check_plot(path: Path | None) -> None:
    """Raise `RequestError` for a plot that was asked for and cannot be drawn."""
    if path is not None:
        from quatrain.exporter.charts.picture import check_picture

        check_picture(path, _ask(path))


def draw_plot(path: Path | None, charts: "Sequence[Chart]", console: Console) -> None:
    """Draw it, if it was asked for."""
    if path is not None:
        from quatrain.exporter.charts.picture import write_picture

        write_picture(path, charts, _ask(path))
        console.say(f"drawn: {path}")


def _ask(path: Path) -> str:
    return f"draw {path} (--plot)"
