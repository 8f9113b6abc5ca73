"""A folder that long work can be resumed from: what it belongs to, and how far it got."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from quatrain.exporter.bundle import write_file
from quatrain.exporter.checkpoint.json_file import read_json_object
from quatrain.exporter.errors import CheckpointError, ExportError

__all__ = ["ResumableFolder"]

_IDENTITY = "calibration.json"


class ResumableFolder:
    """Files that are there whole or not at all, so that whoever is interrupted can go on.

    `identity` is what the work depends on, by what a user calls it; a folder of another one is
    refused with an `ExportError`.
    """

    def __init__(self, path: Path, identity: Mapping[str, str]) -> None:
        self.path = path
        if path.exists() and not path.is_dir():
            raise ExportError(f"keep work in {path} (--work)", "it is a file", "name a folder")
        found = self._read_identity()
        if found is None:
            if path.is_dir() and any(path.iterdir()):
                self.refuse("it holds something else")
            path.mkdir(parents=True, exist_ok=True)
            write_file(path / _IDENTITY, json.dumps(dict(identity), indent=2).encode() + b"\n")
        elif found != identity:
            other = [name for name in identity if found.get(name) != identity[name]]
            self.refuse(f"it was begun with another {' and another '.join(other)}")

    def remove(self) -> None:
        """Give the folder up."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _read_identity(self) -> dict[str, object] | None:
        try:
            return read_json_object(self.path / _IDENTITY)
        except CheckpointError:
            return None

    def refuse(self, found: str) -> NoReturn:
        """Raise `ExportError`: the folder cannot be gone on with, since it is what `found` says."""
        raise ExportError(
            f"go on with the work in {self.path} (--work)",
            found,
            "remove that folder to begin anew, name another --work, or run the same command again",
        )
