"""Drafting: latent dynamics, fitted to a frozen backbone, that guess its next states."""

from quatrain.exporter.drafting.fit import DrafterReport, fit_drafter

__all__ = ["DrafterReport", "fit_drafter"]
