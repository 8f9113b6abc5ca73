"""What a fit to a text depends on, by which its work is known again."""

import hashlib

from quatrain.exporter.calibration_text import CalibrationText
from quatrain.exporter.checkpoint import Checkpoint
from quatrain.runtime.bundle_check import hash_header

__all__ = ["identify_work"]


def identify_work(source: Checkpoint, text: CalibrationText) -> dict[str, str]:
    """What a `ResumableFolder` belongs to: the weight files, as far as they can be told apart
    without reading them, and the very windows of token ids."""
    weights = hashlib.sha256((source.folder / "config.json").read_bytes())
    for file in source.files:
        stat = file.stat()
        facts = (file.name, stat.st_size, stat.st_mtime_ns, hash_header(file, stat.st_size))
        weights.update(f"{facts}\n".encode())
    tokens = hashlib.sha256()
    for windows in (text.fitted, text.held_out):
        tokens.update(f"{windows.shape}\n".encode())
        tokens.update(windows.tobytes())
    return {"checkpoint": weights.hexdigest(), "text, --tokens or --window": tokens.hexdigest()}
