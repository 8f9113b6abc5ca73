"""Writes a comparison into files."""

import json
from pathlib import Path

from quatrain.exporter.comparison.report.page import make_page
from quatrain.exporter.comparison.report.verdict import make_document
from quatrain.exporter.comparison.result import Comparison
from quatrain.exporter.output_file import write_output_file

__all__ = ["write_html", "write_json"]


def write_html(path: Path, comparison: Comparison) -> None:
    """Write the page with tables and plots."""
    write_output_file(path, make_page(comparison), f"write a report to {path}")


def write_json(path: Path, comparison: Comparison) -> None:
    """Write the document that `quatrain compare --json` prints."""
    text = json.dumps(make_document(comparison), indent=2, ensure_ascii=False, allow_nan=False)
    write_output_file(path, text + "\n", f"write a report to {path}")
