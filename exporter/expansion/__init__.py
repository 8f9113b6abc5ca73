"""Progressive expansion: a checkpoint of n streams becomes one of more streams."""

from quatrain.exporter.expansion.expand import ExpansionReport, expand_checkpoint

__all__ = ["ExpansionReport", "expand_checkpoint"]
