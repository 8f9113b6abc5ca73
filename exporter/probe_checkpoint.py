"""A checkpoint, exported for a while to be probed."""

import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from quatrain.exporter.checkpoint import Checkpoint
from quatrain.exporter.export import export_checkpoint
from quatrain.exporter.probe import probe_bundle
from quatrain.exporter.progress import Progress
from quatrain.runtime.session import Model

__all__ = ["probe_checkpoint"]


@contextmanager
def probe_checkpoint(
    source: Checkpoint,
    window: int,
    work: Path,
    progress: Progress,
    layers: Collection[int] | None = None,
    *,
    states: bool = False,
) -> Iterator[Model]:
    """Open a checkpoint on the CPU in float32 for windows of so many tokens, without its head, as
    `probe_bundle` opens a bundle; what that takes lies in the folder `work` meanwhile."""
    bundle = work / "bundle"
    try:
        with progress.stage("export float32 graphs"):
            export_checkpoint(
                source.folder,
                bundle,
                max_seq_len=window,
                max_batch=1,
                self_test=False,
                overwrite=True,
            )
        with probe_bundle(bundle, layers, logits=False, states=states) as model:
            yield model
    finally:
        shutil.rmtree(bundle, ignore_errors=True)
