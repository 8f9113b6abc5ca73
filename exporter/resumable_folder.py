"""A folder that long work can be resumed from: what it belongs to, and how far it got."""

import json
import os
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.bundle import write_file
from quatrain.exporter.checkpoint.json_file import read_json_object
from quatrain.exporter.errors import CheckpointError, ExportError

__all__ = ["ResumableFolder", "choose_work_folder"]

_IDENTITY = "calibration.json"


def choose_work_folder(work: Path | None, output: Path, source: Path) -> Path:
    """Where to keep work: in `work`, by default beside the output, with `.partial` behind its name.

    Raises:
        ExportError: It is in the output, which could then not be written, or in the source.
    """
    if work is None:
        output = Path(output)
        return output.with_name(f"{output.name}.partial")
    place = Path(os.path.realpath(work))
    for name, path in (("the output (-o)", output), ("the checkpoint", source)):
        folder = Path(os.path.realpath(path))
        if folder == place or folder in place.parents:
            raise ExportError(
                f"keep work in {work} (--work)",
                f"it is in {name}, {path}",
                "name a folder outside of it",
            )
    return Path(work)


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
            self._begin(identity)
        elif found != identity:
            other = [name for name in identity if found.get(name) != identity[name]]
            self.refuse(f"it was begun with another {' and another '.join(other)}")

    def load_arrays(self, name: str) -> dict[str, NDArray[Any]] | None:
        """The arrays of a file by name; None where it was not saved yet, and an `ExportError` where
        it is damaged."""
        try:
            with np.load(self.path / name) as stored:
                return {key: stored[key] for key in stored.files}
        except FileNotFoundError:
            return None
        except (OSError, ValueError, EOFError, KeyError, BadZipFile, zlib.error) as error:
            self.refuse(f"{name} is damaged ({error})")

    def save_arrays(self, name: str, arrays: Mapping[str, Any]) -> None:
        """Replace them, whole or not at all, even if the power fails."""
        temporary = self.path / f".{name}.tmp"
        with temporary.open("wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path / name)

    def remove(self) -> None:
        """Give the folder up."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _begin(self, identity: Mapping[str, str]) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_file(self.path / _IDENTITY, json.dumps(dict(identity), indent=2).encode() + b"\n")
        except OSError as error:
            reason = error.strerror or str(error)
            raise ExportError(
                f"keep work in {self.path} (--work)", reason, "name a folder that can be written"
            ) from error

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
