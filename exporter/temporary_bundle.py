"""A checkpoint, exported for a while to run it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quatrain.exporter.checkpoint import Checkpoint
from quatrain.exporter.export import export_checkpoint
from quatrain.exporter.progress import Progress

__all__ = ["temporary_bundle"]


@contextmanager
def temporary_bundle(
    source: Checkpoint, window: int, work: Path, progress: Progress, *, max_batch: int = 1
) -> Iterator[Path]:
    """A bundle for windows of so many tokens, which lies in the folder `work` meanwhile."""
    bundle = work / "bundle"
    try:
        with progress.stage("export float32 graphs"):
            export_checkpoint(
                source.folder,
                bundle,
                max_seq_len=window,
                max_batch=max_batch,
                self_test=False,
                overwrite=True,
            )
        yield bundle
    finally:
        shutil.rmtree(bundle, ignore_errors=True)
