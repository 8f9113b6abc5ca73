"""A folder that stands for a bundle for a while, so that its graphs can be edited.

The bundle itself is left as it is; its weights are linked, and the folder is gone afterwards.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quatrain.exporter.bundle import place_weights
from quatrain.runtime.manifest import Manifest

__all__ = ["borrow_bundle"]


@contextmanager
def borrow_bundle(bundle: Path, manifest: Manifest) -> Iterator[Path]:
    """A folder with the files of a bundle, but for its manifest and engines.

    Whoever changes a file writes a new one under its name: the file itself is the bundle's own.
    """
    folder = _make_folder(bundle)
    try:
        unused = {engine.path for engine in manifest.engines}
        for record in manifest.files:
            if record.path not in unused:
                place_weights(bundle / record.path, folder / record.path, None)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _make_folder(bundle: Path) -> Path:
    """Beside the bundle, where weights can be linked, or among the temporary files."""
    place = bundle.resolve()
    try:
        return Path(tempfile.mkdtemp(prefix=f".{place.name}.probe-", dir=place.parent))
    except OSError:
        return Path(tempfile.mkdtemp(prefix="quatrain-probe-"))
