"""Diagnosis of sparse feed-forward networks: what is chosen, where it fails, what repairs it."""

from quatrain.exporter.diagnosis.diagnose import diagnose_activations
from quatrain.exporter.diagnosis.report import (
    ActivationReport,
    ChannelUse,
    LayerReport,
    PositionBucket,
    Repair,
    Suggestion,
)

__all__ = [
    "ActivationReport",
    "ChannelUse",
    "LayerReport",
    "PositionBucket",
    "Repair",
    "Suggestion",
    "diagnose_activations",
]
