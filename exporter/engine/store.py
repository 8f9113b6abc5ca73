"""Engines on disk: built in a staging folder, then all named in the manifest, or none."""

import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import msgspec

from quatrain.exporter.bundle import write_file
from quatrain.exporter.errors import BuildError
from quatrain.runtime.manifest import (
    MANIFEST_NAME,
    Engine,
    FileRecord,
    Manifest,
    dump_manifest,
    load_manifest,
)

__all__ = [
    "ENGINES_FOLDER",
    "EngineFile",
    "StagedEngine",
    "commit_engines",
    "disk_error",
    "staged_engines",
]

ENGINES_FOLDER = "engines"
_STAGING_PREFIX = ".staging-engines-"


@dataclass(slots=True)
class EngineFile:
    """An engine on its way to the disk: counts and hashes what passes, and keeps its error."""

    path: Path
    num_bytes: int = 0
    error: OSError | None = None
    _hash: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    def write(self, data: bytes) -> int:
        """Append; after an error it takes nothing more. Never raises: TensorRT would ignore it."""
        if self.error is not None:
            return 0
        try:
            with self.path.open("ab") as stream:
                stream.write(data)
        except OSError as error:
            self.error = error
            return 0
        self._hash.update(data)
        self.num_bytes += len(data)
        return len(data)

    @property
    def sha256(self) -> str:
        """Of everything written."""
        return self._hash.hexdigest()


@dataclass(frozen=True, slots=True)
class StagedEngine:
    """A built engine, and its entry in the manifest for each target (with the path it wants)."""

    file: EngineFile
    entries: list[Engine]


@contextmanager
def staged_engines(bundle: Path, needed: int) -> Iterator[Path]:
    """A folder in the bundle to build in, gone when the block ends; one build at a time.

    Raises `BuildError` in place of any `OSError`; a full disk's names the bytes `needed`.
    """
    with _lock_bundle(bundle):
        for leftover in bundle.glob(f"{_STAGING_PREFIX}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            staging = Path(tempfile.mkdtemp(prefix=_STAGING_PREFIX, dir=bundle))
        except OSError as error:
            raise disk_error(bundle, error, needed) from error
        try:
            yield staging
        except OSError as error:
            raise disk_error(bundle, error, needed) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def disk_error(bundle: Path, error: OSError, needed: int) -> BuildError:
    """The user's error for one of the disk; `needed` is in bytes."""
    asked = f"write engines into {bundle}"
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return BuildError(asked, str(error), "make the bundle's folder writable")
    free = shutil.disk_usage(bundle).free
    return BuildError(
        asked,
        f"too little space on the disk: about {needed:,} bytes needed, {free:,} free; "
        f"the bundle is as it was",
        "free some space, or move the bundle to another disk",
    )


def commit_engines(bundle: Path, before: Manifest, built: Sequence[StagedEngine]) -> list[Engine]:
    """Move built engines into the bundle and name them in its manifest; returns the entries.

    A new file never takes the place of one the old manifest names, so that one stays true until
    the new one is there; then what nothing names any more is removed. Entries of the same targets
    give way, as do those of other targets that shared an engine with them.

    Args:
        before: The manifest that the engines were built from.
    """
    if load_manifest(bundle) != before:
        raise BuildError(
            f"add engines to {bundle}", "its manifest changed during the build", "build again"
        )
    folder = bundle / ENGINES_FOLDER
    is_new = not folder.exists()
    entries: list[Engine] = []
    records: list[FileRecord] = []
    try:
        folder.mkdir(exist_ok=True)
        for engine in built:
            path = _place(bundle, engine, before)
            records.append(
                FileRecord(path=path, bytes=engine.file.num_bytes, sha256=engine.file.sha256)
            )
            entries += [msgspec.structs.replace(entry, path=path) for entry in engine.entries]
        after = _merge(before, entries, records)
        write_file(bundle / MANIFEST_NAME, dump_manifest(after))
    except BaseException:
        _remove(bundle, {r.path for r in records} - {r.path for r in before.files})
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    _remove(bundle, {e.path for e in before.engines} - {e.path for e in after.engines})
    return entries


@contextmanager
def _lock_bundle(bundle: Path) -> Iterator[None]:
    descriptor = os.open(bundle, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BuildError(
                f"build engines into {bundle}",
                "another build is at work on it",
                "wait for that build to end",
            ) from error
        yield
    finally:
        os.close(descriptor)


def _place(bundle: Path, engine: StagedEngine, before: Manifest) -> str:
    """Give a staged file the path it wants, or one with its hash if another file has that."""
    path, digest = engine.entries[0].path, engine.file.sha256
    if any(record.path == path and record.sha256 != digest for record in before.files):
        name = PurePosixPath(path)
        path = str(name.with_name(f"{name.stem}-{digest[:8]}{name.suffix}"))
    os.replace(engine.file.path, bundle / path)
    return path


def _merge(before: Manifest, entries: list[Engine], records: list[FileRecord]) -> Manifest:
    targets = {entry.target for entry in entries}
    by_kind = {(entry.graph, entry.flavour, entry.sm): entry for entry in entries}
    engines = []
    for old in before.engines:
        if old.target in targets:
            continue
        new = by_kind.get((old.graph, old.flavour, old.sm))
        engines.append(_hand_over(old, new) if new else old)
    engines += entries
    gone = {e.path for e in before.engines} - {e.path for e in engines}
    gone |= {record.path for record in records}
    used = sorted({f"{engine.flavour} {engine.version}" for engine in engines})
    return msgspec.structs.replace(
        before,
        engines=engines,
        files=[record for record in before.files if record.path not in gone] + records,
        versions=msgspec.structs.replace(before.versions, tensorrt=", ".join(used)),
    )


def _hand_over(old: Engine, new: Engine) -> Engine:
    """The new engine's entry for the target of an old one that it takes the place of."""
    return msgspec.structs.replace(
        new, target=old.target, vendor_supported=old.vendor_supported, note=old.note
    )


def _remove(bundle: Path, paths: set[str]) -> None:
    for path in paths:
        (bundle / path).unlink(missing_ok=True)
