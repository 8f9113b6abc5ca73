"""Is a bundle what the exporter wrote? Sizes and hashes against the manifest.

Opening a bundle must not read gigabytes, so unless asked for everything, files above
`QUICK_BYTES` are held to their size, and linked weights (hard links to the checkpoint) to
their size, modification time and header, or what stands for it. The latter is all there is of
linked weights that were exported without a hash, whatever is asked for.
"""

import errno
import hashlib
import os
import stat
from pathlib import Path

from quatrain.runtime.errors import BundleError, fix_reading
from quatrain.runtime.manifest import FileRecord, Link, Manifest

__all__ = ["QUICK_BYTES", "hash_file", "hash_header", "list_comparisons", "verify_bundle"]

QUICK_BYTES = 64 * 1024 * 1024

_ZIP = b"PK\x03\x04"  # as a length it would be that of a header of at least 67 MB
_END_BYTES = 1024 * 1024
_EXPORT_AGAIN = "export the checkpoint again, or restore the bundle from a copy"


def verify_bundle(bundle: Path, manifest: Manifest, *, full: bool = False) -> None:
    """Check every file the manifest records; the first that differs raises `BundleError`.

    Args:
        full: Hash all files whose hash was recorded, however large: see `list_comparisons`.
    """
    root = bundle.resolve()
    for record in manifest.files:
        path = bundle / record.path
        fix = _choose_fix(bundle, manifest, record)
        try:
            _check_file(path, root, record, fix, full)
        except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
            reason = (isinstance(error, OSError) and error.strerror) or str(error)
            if not isinstance(error, PermissionError):
                reason = f"{reason}; the manifest says {record.bytes} bytes"
            raise BundleError(
                f"the bundle file {path}",
                reason,
                fix_reading(error, fix),
            ) from error


def list_comparisons(manifest: Manifest) -> dict[str, str]:
    """By path, what `verify_bundle(full=True)` holds each file to: `sha256`, or where that was not
    recorded, as by default of linked weights, what changes of their numbers do not show in."""
    return {
        record.path: "sha256" if record.sha256 is not None else _name_link_check(record)
        for record in manifest.files
    }


def _name_link_check(record: FileRecord) -> str:
    if record.path.endswith(".safetensors"):
        return "size, time and header"
    return "size, time, first and last MiB"


def _choose_fix(bundle: Path, manifest: Manifest, record: FileRecord) -> str:
    targets = [engine.target for engine in manifest.engines if engine.path == record.path]
    if not targets:
        return _EXPORT_AGAIN
    command = f"quatrain build {bundle} --target {' '.join(dict.fromkeys(targets))}"
    return f"build it again ({command}), or restore the bundle from a copy"


def _check_file(path: Path, root: Path, record: FileRecord, fix: str, full: bool) -> None:
    status = _check_presence(path, root, record, fix)
    if full or record.link is None:
        _check_hash(path, record, fix, full)
    if record.link is not None:
        _check_link(path, record, record.link, status)


def _check_presence(path: Path, root: Path, record: FileRecord, fix: str) -> os.stat_result:
    asked = f"the bundle file {path}"
    real = path.resolve(strict=True)
    status = real.stat()
    if not real.is_relative_to(root):
        raise BundleError(
            asked,
            f"a symbolic link that leaves the bundle, to {real}",
            "put the file itself into the bundle",
        )
    if not stat.S_ISREG(status.st_mode):
        raise BundleError(asked, "not a file", fix)
    if status.st_size != record.bytes:
        raise BundleError(asked, f"{status.st_size} bytes; the manifest says {record.bytes}", fix)
    if not os.access(real, os.R_OK):  # a large file is not read here, and will be later
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return status


def _check_hash(path: Path, record: FileRecord, fix: str, full: bool) -> None:
    if record.sha256 is None or (record.bytes > QUICK_BYTES and not full):
        return
    found = hash_file(path)
    if found != record.sha256:
        raise BundleError(
            f"the bundle file {path}",
            f"SHA-256 {found}; the manifest says {record.sha256}",
            fix,
        )


def _check_link(path: Path, record: FileRecord, link: Link, status: os.stat_result) -> None:
    asked = f"the linked weights {path}"
    found = hash_header(path, record.bytes)
    if found != link.header_sha256:
        raise BundleError(
            asked,
            f"a header with SHA-256 {found}; the manifest says {link.header_sha256}",
            _EXPORT_AGAIN,
        )
    if status.st_mtime_ns == link.mtime_ns:
        return
    if record.sha256 is not None:  # touched or copied: the hash decides
        _check_hash(path, record, _EXPORT_AGAIN, full=True)
        return
    raise BundleError(
        asked,
        f"modified at {status.st_mtime_ns} ns; the manifest says {link.mtime_ns}",
        "if the checkpoint changed, export it again; if only the bundle was copied, copy it with "
        "its times (cp -a, rsync -a), or export with --weights copy or --hash-weights",
    )


def hash_file(path: Path) -> str:
    """SHA-256 of a file, as hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_header(path: Path, num_bytes: int) -> str:
    """SHA-256 of what tells weights apart without reading them all.

    Of safetensors that is the header, its 8-byte little-endian length included. Of a zip, as
    torch.save writes, it is the first and the last MiB, where names, shapes and CRCs are.

    Raises `BundleError` where the file, of `num_bytes`, is too short for the header it announces.
    """
    with path.open("rb") as file:
        prefix = file.read(8)
        if prefix.startswith(_ZIP):
            ends = prefix + file.read(_END_BYTES - len(prefix))
            file.seek(max(num_bytes - _END_BYTES, 0))
            return hashlib.sha256(ends + file.read(_END_BYTES)).hexdigest()
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or length > num_bytes - 8:
            raise BundleError(
                f"the linked weights {path}",
                f"no safetensors header: it claims {length} bytes of a file of {num_bytes}",
                _EXPORT_AGAIN,
            )
        return hashlib.sha256(prefix + file.read(length)).hexdigest()
