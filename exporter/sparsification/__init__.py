"""Sparsification: a dense checkpoint becomes one whose feed-forward channels run by banks."""

from quatrain.exporter.sparsification.sparsify import SparsifyReport, sparsify_checkpoint

__all__ = ["SparsifyReport", "sparsify_checkpoint"]
