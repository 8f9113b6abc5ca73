"""A checkpoint with those of its axes that an export is to have."""

from pathlib import Path

from quatrain.exporter.checkpoint.checkpoint import Checkpoint, open_checkpoint
from quatrain.exporter.dense_fallback import choose_dense_fallback
from quatrain.exporter.drafter_choice import choose_drafter
from quatrain.exporter.options import ExportRequest
from quatrain.exporter.progress import Progress

__all__ = ["open_chosen"]


def open_chosen(path: Path, request: ExportRequest, progress: Progress | None = None) -> Checkpoint:
    """Open it; `progress` is told of a drafter that is left out."""
    found = choose_dense_fallback(open_checkpoint(path), request.dense_fallback)
    opened = choose_drafter(found, request.drafter)
    if progress is not None and opened.spec.drafter != found.spec.drafter:
        progress.say("  its drafter is left out; --drafter keeps it")
    return opened
