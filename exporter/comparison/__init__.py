"""Holds a bundle to its checkpoint: what the deployed graphs compute is what the model says."""

from quatrain.exporter.comparison.compare import compare_bundle
from quatrain.exporter.comparison.result import (
    CaseInfo,
    Check,
    Comparison,
    Divergence,
    Flip,
    Histogram,
    LayerError,
    PlotData,
    RunnerInfo,
)

__all__ = [
    "CaseInfo",
    "Check",
    "Comparison",
    "Divergence",
    "Flip",
    "Histogram",
    "LayerError",
    "PlotData",
    "RunnerInfo",
    "compare_bundle",
]
