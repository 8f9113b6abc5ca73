"""A folder written beside its place and renamed whole, or not at all."""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from quatrain.exporter.errors import ExportError

__all__ = ["staged_folder"]


@contextmanager
def staged_folder(
    output: Path, *, kind: str, check_output: Callable[[Path], None]
) -> Iterator[Path]:
    """A folder beside `output` that takes its name when the block ends well, and vanishes if not.

    Args:
        kind: What is written, for messages: "a bundle".
        check_output: Raises for an `output` that must not be written. It is asked before the
            block and again before the rename; a folder it lets pass is replaced.

    Raises:
        ExportError: The disk is full, or the folder cannot be written.
    """
    output = Path(os.path.abspath(output))
    check_output(output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{output.name}.staging-", dir=output.parent))
    except OSError as error:
        raise _write_error(output, kind, error) from error
    try:
        # mkdtemp makes a folder only its owner may enter; what is written is an ordinary one.
        umask = os.umask(0)
        os.umask(umask)
        staging.chmod(0o777 & ~umask)
        yield staging
        check_output(output)  # the block may have taken minutes
        _replace_folder(staging, output)
    except OSError as error:
        raise _write_error(output, kind, error) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _replace_folder(staging: Path, output: Path) -> None:
    if not output.exists():
        staging.rename(output)
        return
    # Two renames: a folder with contents cannot be replaced in one. The old folder is removed
    # only when a new one has its name, and put back if the new one does not get it.
    holder = Path(tempfile.mkdtemp(prefix=f".{output.name}.old-", dir=output.parent))
    old = holder / "old"
    try:
        output.rename(old)
        staging.rename(output)
    except BaseException:
        if not output.exists():
            old.rename(output)
        raise
    finally:
        if output.exists():
            shutil.rmtree(holder, ignore_errors=True)


def _write_error(output: Path, kind: str, error: OSError) -> ExportError:
    found, fix = str(error), "make the folder writable, or choose another -o"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(output.parent).free
        found = f"the disk is full ({free / 1e9:.2f} GB free); what was written has been removed"
        fix = "free some space, choose another disk, or use --weights link on the checkpoint's disk"
    return ExportError(f"write {kind} to {output}", found, fix)
