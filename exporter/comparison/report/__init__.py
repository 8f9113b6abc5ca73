"""A comparison for people and scripts: tables, a page with plots, a JSON document."""

from quatrain.exporter.comparison.report.files import write_html, write_json
from quatrain.exporter.comparison.report.page import make_page
from quatrain.exporter.comparison.report.tables import list_tables
from quatrain.exporter.comparison.report.verdict import describe_verdict, make_document

__all__ = [
    "describe_verdict",
    "list_tables",
    "make_document",
    "make_page",
    "write_html",
    "write_json",
]
