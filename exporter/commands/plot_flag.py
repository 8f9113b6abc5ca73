"""The flag of commands that also draw what they found."""

import argparse

from quatrain.exporter.commands.path_flag import read_path

__all__ = ["add_plot_flag"]


def add_plot_flag(group: argparse._ActionsContainer) -> None:
    """Declare --plot; `quatrain.exporter.charts.picture` checks and writes it."""
    group.add_argument(
        "--plot",
        type=read_path,
        metavar="FILE",
        help="also draw it into this file: .svg, or .png (which needs quatrain[png])",
    )
