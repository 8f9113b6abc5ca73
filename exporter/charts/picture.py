"""Charts as a file of their own: SVG, or PNG for where SVG is not shown."""

from collections.abc import Sequence
from pathlib import Path

from quatrain.exporter.charts.chart import Chart
from quatrain.exporter.charts.svg import draw_charts
from quatrain.exporter.output_file import check_output_file, write_output_file
from quatrain.runtime.errors import RequestError

__all__ = ["check_picture", "write_picture"]


def check_picture(path: Path, asked: str) -> None:
    """Before minutes of work: can a picture of that name be drawn and written?

    Raises:
        RequestError: It ends in neither .svg nor .png, what draws the latter is not installed, or
            `check_output_file` knows why not. It begins with `asked`.
    """
    check_output_file(path, asked)
    svg = f"{path.stem}.svg"
    if path.suffix.lower() not in {".svg", ".png"}:
        found = f"charts are drawn as .svg or .png, and this is {path.suffix or 'neither'}"
        raise RequestError(asked, found, f"name it {svg}")
    if _is_png(path):
        try:
            import quatrain.exporter.charts.png  # noqa: F401
        except ImportError as error:
            found = f"what draws .png cannot be loaded: {error}"
            if isinstance(error, ModuleNotFoundError):
                found = f"the Python package {error.name} is not installed"
            fix = f"pip install 'quatrain[png]', or name it {svg}"
            raise RequestError(asked, found, fix) from error


def write_picture(path: Path, charts: Sequence[Chart], asked: str) -> None:
    """Draw the charts one below the other, as `write_output_file` writes.

    Raises:
        RequestError: It cannot be written. It begins with `asked`.
    """
    svg = draw_charts(charts)
    if not _is_png(path):
        write_output_file(path, svg, asked)
        return
    from quatrain.exporter.charts.png import render_png

    write_output_file(path, render_png(svg), asked)


def _is_png(path: Path) -> bool:
    return path.suffix.lower() == ".png"
