"""A folder of sessions as ONNX Runtime has optimized them, so that opening a bundle again is quick.

An entry is a folder of its own, named by all that its content follows from. It is written beside
and renamed, so it is there as a whole or not at all, and whatever goes wrong costs only the time
that it would have saved: the bundle is then opened as without a cache.

What an entry cannot tell: its weights are held to their size only, and so are those of the bundle,
which the manifest's record stands for. A bundle changed behind its manifest is opened as it was.
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from quatrain.runtime.bundle_check import hash_file
from quatrain.runtime.cpu_identity import describe_cpu
from quatrain.runtime.manifest import FileRecord, Graph, Manifest

__all__ = ["MODEL_NAME", "SessionCache", "open_session_cache"]

logger = logging.getLogger(__name__)

MODEL_NAME = "model.onnx"
_RECORD_NAME = "entry.json"
_LAYOUT = 1
_UNFINISHED = ".unfinished-"
# What a process left that did not live to rename it; nobody writes for so long without a pause.
_LEFT_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class SessionCache:
    """The entries of one bundle in `folder`; `weights` says which weights it has."""

    folder: Path
    weights: str

    def describe(self, graph: Path, backend: str) -> dict[str, str]:
        """All that an optimized session follows from; `backend` names version and options.

        Nothing of it says where the bundle lies. `OSError` if the graph cannot be read.
        """
        return {
            "layout": str(_LAYOUT),
            "graph": hash_file(graph),
            "weights": self.weights,
            "backend": backend,
            "cpu": describe_cpu(),
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
        self.folder.mkdir(parents=True, exist_ok=True)
        self._clear_unfinished()
        folder = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self.folder))
        try:
            write(folder / MODEL_NAME)
            _record(folder, made_from)
            self._publish(folder, made_from)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return self._place(made_from) / MODEL_NAME

    def discard(self, made_from: dict[str, str]) -> None:
        """Remove an entry that turned out to be of no use; `OSError` if it will not go."""
        self.folder.mkdir(parents=True, exist_ok=True)
        grave = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self.folder))
        try:
            # A rename first: nobody shall see half of it.
            os.rename(self._place(made_from), grave / "entry")
        except FileNotFoundError:  # another process was first
            pass
        finally:
            shutil.rmtree(grave, ignore_errors=True)

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

    def _clear_unfinished(self) -> None:
        for folder in self.folder.glob(f"{_UNFINISHED}*"):
            if time.time() - _read_last_change(folder) > _LEFT_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def open_session_cache(folder: Path, bundle: Path, manifest: Manifest) -> SessionCache | None:
    """The cache for a bundle; None, with a warning, if its files are not as its manifest says."""
    try:
        return SessionCache(folder, _describe_weights(bundle, manifest))
    except (OSError, ValueError) as error:
        logger.warning("%s is opened without the session cache %s: %s", bundle, folder, error)
        return None


def _describe_weights(bundle: Path, manifest: Manifest) -> str:
    """A hash of what the manifest records of every file but graphs and engines.

    `ValueError` where a size differs, or the time of linked weights whose content has no hash.
    """
    graphs = {path for graph in manifest.graphs for path in _list_paths(graph)}
    others = graphs | {engine.path for engine in manifest.engines}
    records = [record for record in manifest.files if record.path not in others]
    facts = [_describe_file(bundle, record) for record in sorted(records, key=lambda r: r.path)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _list_paths(graph: Graph) -> Iterable[str]:
    return graph.path, graph.deployment.path


def _describe_file(bundle: Path, record: FileRecord) -> list[str | int]:
    status = (bundle / record.path).stat()
    if status.st_size != record.bytes:
        raise ValueError(
            f"{record.path} has {status.st_size} bytes, its manifest says {record.bytes}"
        )
    if record.sha256 is not None:
        return [record.path, record.bytes, record.sha256]
    if record.link is None:
        raise ValueError(f"its manifest has neither hash nor link of {record.path}")
    if status.st_mtime_ns != record.link.mtime_ns:
        raise ValueError(f"{record.path} was modified since its manifest was written")
    return [record.path, record.bytes, record.link.header_sha256, record.link.mtime_ns]


def _find_fault(entry: Path, made_from: dict[str, str]) -> str | None:
    """What is wrong with an entry: files held to their size, the model to its hash, too."""
    try:
        record = json.loads((entry / _RECORD_NAME).read_bytes())
        if record["made_from"] != made_from:
            return "it was made from something else"
        for name, size in record["bytes"].items():
            found = (entry / name).stat().st_size
            if found != size:
                return f"{name} has {found} bytes instead of {size}"
        if hash_file(entry / MODEL_NAME) != record["model"]:
            return f"{MODEL_NAME} was altered"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return str(error) or type(error).__name__
    return None


def _record(folder: Path, made_from: dict[str, str]) -> None:
    """Write down what is there, and have the disk keep it before anybody can find it."""
    files = sorted(path for path in folder.iterdir())
    sizes = {path.name: path.stat().st_size for path in files}
    record = {"made_from": made_from, "bytes": sizes, "model": hash_file(folder / MODEL_NAME)}
    (folder / _RECORD_NAME).write_text(json.dumps(record, indent=2), encoding="utf-8")
    for path in (*files, folder / _RECORD_NAME):
        with path.open("rb+") as file:
            os.fsync(file.fileno())


def _read_last_change(folder: Path) -> float:
    """Of the folder or a file in it; now, where that cannot be told."""
    try:
        return max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
    except OSError:
        return time.time()
