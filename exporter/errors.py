"""Errors of the host side; each is a `QuatrainError`: asked, found, fix."""

from quatrain.runtime.errors import QuatrainError

__all__ = ["BuildError", "CheckpointError", "ComparisonError", "ExportError", "SpecError"]


class CheckpointError(QuatrainError):
    """A checkpoint that is damaged, incomplete, or of an architecture we do not know."""


class SpecError(QuatrainError):
    """A combination of axes or sizes that no decoder can have."""


class ExportError(QuatrainError):
    """An export that cannot be carried out as asked."""


class BuildError(QuatrainError):
    """An engine that cannot be built, or that would not be what was asked."""


class ComparisonError(QuatrainError):
    """Two things that cannot be compared: they are not of the same model, or not of one shape."""
