"""A safetensors file of tensors that are copied from other files, written as a stream.

The format: github.com/huggingface/safetensors, README "Format".
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

from quatrain.exporter.checkpoint import LazyTensor
from quatrain.exporter.progress import Progress

__all__ = ["write_table_file"]

_ALIGNMENT = 8  # of the data, so that mapped elements are aligned; the format pads with spaces
_CHUNK_BYTES = 1 << 24


def write_table_file(path: Path, sources: Mapping[str, LazyTensor], progress: Progress) -> None:
    """Write each source's bytes under a new name, never more than a chunk of them in memory.

    Raises:
        CheckpointError: A source has become shorter since it was opened.
        FileExistsError: There is such a file already.
    """
    with path.open("xb") as file:
        file.write(_make_header(sources))
        for name, source in sources.items():
            progress.say(f"  {name}: {source.nbytes / 1e6:,.1f} MB of {source.stored_name}")
            for chunk in source.chunks(_CHUNK_BYTES):
                file.write(chunk)


def _make_header(sources: Mapping[str, LazyTensor]) -> bytes:
    # transformers opens no file without this format entry.
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, source in sources.items():
        offsets = [position, position + source.nbytes]
        header[name] = {"dtype": source.dtype, "shape": source.shape, "data_offsets": offsets}
        position += source.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text
