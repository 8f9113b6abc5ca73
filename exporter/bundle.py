"""A bundle on disk: its staging folder, its weights, and the records of its files."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

from quatrain.exporter.errors import ExportError
from quatrain.exporter.staging import staged_folder
from quatrain.runtime.bundle_check import hash_file, hash_header
from quatrain.runtime.folder_kind import find_kind
from quatrain.runtime.manifest import MANIFEST_NAME, FileRecord, Link

__all__ = [
    "WeightsMode",
    "check_bundle_place",
    "name_unfinished",
    "place_weights",
    "record_file",
    "record_link",
    "staged_bundle",
    "write_file",
]

WeightsMode = Literal["link", "copy"]
_CHUNK_BYTES = 1 << 22


@contextmanager
def staged_bundle(output: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A folder beside `output` that takes its name when the block ends well, and vanishes if not.

    Raises `ExportError` if `output` exists (unless it is a bundle and `overwrite` is set), or if
    the disk is full.
    """
    check_output = partial(check_bundle_place, overwrite=overwrite)
    with staged_folder(output, kind="a bundle", check_output=check_output) as staging:
        yield staging


def check_bundle_place(output: Path, *, overwrite: bool) -> None:
    """Raise `ExportError` if `output` exists, unless it is a bundle and `overwrite` is set."""
    if not os.path.lexists(output):
        return
    if not overwrite:
        raise ExportError(
            f"write a bundle to {output}",
            "something is there already",
            "choose another -o, or pass --overwrite to replace a bundle",
        )
    kind = find_kind(Path(output))
    if kind != "bundle":
        raise ExportError(
            f"replace {output} (--overwrite)",
            "it is a checkpoint" if kind else f"it is not a bundle: no {MANIFEST_NAME} in it",
            "choose another -o; nothing but a bundle is ever replaced",
        )


def place_weights(
    source: Path, target: Path, mode: WeightsMode | None
) -> tuple[WeightsMode, str | None]:
    """Put a weight file at `target` as a hard link or a copy; says which, and a copy's SHA-256.

    Without a `mode` it links where the file system allows. It is a hard link because ONNX Runtime
    refuses external data outside the model's folder, and symbolic links that lead there.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if mode != "copy":
        try:
            os.link(source.resolve(), target)
            return "link", None
        except OSError as error:
            if mode == "link":
                raise ExportError(
                    f"link {source} rather than copy it (--weights link)",
                    f"{error.strerror}: a hard link needs one file system and the right to link",
                    "write the output (-o) next to the checkpoint, or use --weights copy",
                ) from error
    return "copy", _copy_file(source, target)


def record_file(bundle: Path, path: str, sha256: str | None = None) -> FileRecord:
    """Size and SHA-256 of a file in the bundle (`sha256`, if it is known already)."""
    file = bundle / path
    return FileRecord(path=path, bytes=file.stat().st_size, sha256=sha256 or hash_file(file))


def record_link(bundle: Path, path: str, sha256: str | None = None) -> FileRecord:
    """What identifies linked weights without reading them: size, time and header hash."""
    file = bundle / path
    stat = file.stat()
    link = Link(mtime_ns=stat.st_mtime_ns, header_sha256=hash_header(file, stat.st_size))
    return FileRecord(path=path, bytes=stat.st_size, sha256=sha256, link=link)


def name_unfinished(path: Path) -> Path:
    """What `write_file` calls a file until it is there as a whole."""
    return path.with_name(f".{path.name}.tmp")


def write_file(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all, even over an older one."""
    temporary = name_unfinished(path)
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _copy_file(source: Path, target: Path) -> str:
    digest = hashlib.sha256()
    # "x": what is there already may be a hard link to the checkpoint, and is never written to.
    with source.open("rb") as reader, target.open("xb") as writer:
        while chunk := reader.read(_CHUNK_BYTES):
            digest.update(chunk)
            writer.write(chunk)
    return digest.hexdigest()
