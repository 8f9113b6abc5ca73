"""A folder of sessions as ONNX Runtime has optimized them, so that opening a bundle again is quick.

An entry is a folder of its own, named by all that its content follows from. It is written beside
and renamed, so it is there as a whole or not at all, and whatever goes wrong costs only the time
that it would have saved: the bundle is then opened as without a cache.

Both the files of the bundle and those of the entry are known by their content, which is read again
only when the file system says that a file may be another (`known_hashes`).
"""

import hashlib
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from quatrain.runtime.bundle_check import hash_file
from quatrain.runtime.cpu_identity import describe_cpu
from quatrain.runtime.known_hashes import hash_known_file, remember_hash
from quatrain.runtime.manifest import Graph, Manifest

__all__ = ["MODEL_NAME", "SessionCache", "open_session_cache"]

logger = logging.getLogger(__name__)

MODEL_NAME = "model.onnx"
_RECORD_NAME = "entry.json"
_HASHES = "hashes"
_LAYOUT = 1
_UNFINISHED = ".quatrain-unfinished-"
# What a process left that did not live to rename it; nobody writes for so long without a pause.
_LEFT_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class SessionCache:
    """The entries of one bundle on one machine in `folder`; `weights` says which weights it has,
    `cpu` which processor runs it."""

    folder: Path
    weights: str
    cpu: str

    def describe(self, graph: Path, backend: str) -> dict[str, str]:
        """All that an optimized session follows from; `backend` names version and options.

        Nothing of it says where the bundle lies. `OSError` if the graph cannot be read.
        """
        return {
            "layout": str(_LAYOUT),
            "graph": hash_file(graph),
            "weights": self.weights,
            "backend": backend,
            "cpu": self.cpu,
        }

    def find(self, made_from: dict[str, str]) -> Path | None:
        """The model of an entry, if there is one and it is as it was written."""
        entry = self._place(made_from)
        problem = _find_fault(entry, made_from)
        if problem is None:
            return entry / MODEL_NAME
        if entry.exists():
            logger.warning("the session cache %s is made again: %s", entry, problem)
        return None

    def store(self, made_from: dict[str, str], write: Callable[[Path], None]) -> Path:
        """Have `write` put its model into a new folder, which becomes the entry; its model.

        Raises whatever `write` does, and `OSError`; nothing is left then.
        """
        folder = self._make_unfinished()
        try:
            write(folder / MODEL_NAME)
            _record(folder, made_from)
            self._publish(folder, made_from)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return self._place(made_from) / MODEL_NAME

    def discard(self, made_from: dict[str, str]) -> None:
        """Remove an entry that turned out to be of no use; `OSError` if it will not go."""
        grave = self._make_unfinished()
        try:
            # A rename first: nobody shall see half of it.
            os.rename(self._place(made_from), grave / "entry")
        except FileNotFoundError:  # another process was first
            pass
        finally:
            shutil.rmtree(grave, ignore_errors=True)

    def _make_unfinished(self) -> Path:
        # Not by mkdtemp, whose folders are closed to whoever else may read this one.
        folder = self.folder / f"{_UNFINISHED}{secrets.token_hex(8)}"
        folder.mkdir(parents=True)
        return folder

    def _place(self, made_from: dict[str, str]) -> Path:
        text = json.dumps(made_from, sort_keys=True)
        return self.folder / hashlib.sha256(text.encode()).hexdigest()[:32]

    def _publish(self, folder: Path, made_from: dict[str, str]) -> None:
        place = self._place(made_from)
        if place.exists():
            if _find_fault(place, made_from) is None:  # another process was first
                return
            self.discard(made_from)
        try:
            os.rename(folder, place)
        except OSError:
            if _find_fault(place, made_from) is not None:
                raise

    def clear_unfinished(self) -> None:
        """Remove what processes left that were killed while they wrote."""
        for folder in self.folder.glob(f"{_UNFINISHED}*"):
            if time.time() - _read_last_change(folder) > _LEFT_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def open_session_cache(folder: Path, bundle: Path, manifest: Manifest) -> SessionCache | None:
    """The cache for a bundle; None, with a warning, if its files cannot be read."""
    try:
        cache = SessionCache(folder, _describe_weights(folder, bundle, manifest), describe_cpu())
        cache.clear_unfinished()
        return cache
    except (OSError, ValueError) as error:
        logger.warning("%s is opened without the session cache %s: %s", bundle, folder, error)
        return None


def _describe_weights(folder: Path, bundle: Path, manifest: Manifest) -> str:
    """A hash of the content of every file but graphs and engines."""
    graphs = {path for graph in manifest.graphs for path in _list_paths(graph)}
    others = graphs | {engine.path for engine in manifest.engines}
    paths = sorted(record.path for record in manifest.files if record.path not in others)
    facts = [[path, hash_known_file(bundle / path, folder / _HASHES)] for path in paths]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _list_paths(graph: Graph) -> Iterable[str]:
    return graph.path, graph.deployment.path


def _find_fault(entry: Path, made_from: dict[str, str]) -> str | None:
    """What is wrong with an entry, down to the content of its files."""
    try:
        record = json.loads((entry / _RECORD_NAME).read_bytes())
        if record["made_from"] != made_from:
            return "it was made from something else"
        for name, digest in record["files"].items():
            if hash_known_file(entry / name, entry.parent / _HASHES) != digest:
                return f"{name} was altered"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return str(error) or type(error).__name__
    return None


def _record(folder: Path, made_from: dict[str, str]) -> None:
    """Write down what is there, and have the disk keep it before anybody can find it."""
    files = sorted(folder.iterdir())
    hashes = {path.name: hash_file(path) for path in files}
    record = {"made_from": made_from, "files": hashes}
    (folder / _RECORD_NAME).write_text(json.dumps(record, indent=2), encoding="utf-8")
    for path in (*files, folder / _RECORD_NAME):
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    for path in files:
        remember_hash(path, hashes[path.name], folder.parent / _HASHES)


def _read_last_change(folder: Path) -> float:
    """Of the folder or a file in it; now, where that cannot be told."""
    try:
        return max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
    except OSError:
        return time.time()
