"""A folder written beside its place and renamed whole, or not at all."""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from quatrain.exporter.errors import ExportError
from quatrain.runtime.errors import fix_reading

__all__ = ["check_place", "staged_folder"]


def check_place(output: Path, kind: str) -> None:
    """Raise `ExportError` where `output` cannot be made: folders that are missing will be, in the
    first one that is there.

    Args:
        kind: What is to be written, for messages: "a bundle".
    """
    folder = Path(os.path.realpath(output)).parent
    place = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not os.path.isdir(place):
        found = f"{place} is a file"
    elif not os.access(place, os.W_OK | os.X_OK):
        found = f"nothing can be written in {place}"
    else:
        return
    raise ExportError(f"write {kind} to {output}", found, "choose another -o")


@contextmanager
def staged_folder(
    output: Path, *, kind: str, check_output: Callable[[Path], None]
) -> Iterator[Path]:
    """A folder beside `output` that takes its name when the block ends well, and vanishes if not.
    Where `output` is a symbolic link, that is done where it leads, and the link stays.

    Args:
        kind: What is written, for messages: "a bundle".
        check_output: Raises for an `output` that must not be written. It is asked before the
            block and again before the rename; a folder it lets pass is replaced.

    Raises:
        ExportError: The disk is full, the folder cannot be written, or a source cannot be read.
    """
    asked, output = Path(output).absolute(), Path(os.path.realpath(output))
    check_output(asked)
    check_place(asked, kind)
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
        check_output(asked)  # the block may have taken minutes
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
    elif _is_of_a_source(output, error):
        fix = fix_reading(error, fix)
    return ExportError(f"write {kind} to {output}", found, fix)


def _is_of_a_source(output: Path, error: OSError) -> bool:
    """Whether the file that made trouble is none of what is written, nor a folder above it."""
    if not isinstance(error.filename, str):
        return False
    path = Path(os.path.realpath(error.filename))
    ours = (f".{output.name}.staging-", f".{output.name}.old-")
    is_ours = path == output or path in output.parents or output in path.parents
    return not is_ours and not any(part.startswith(ours) for part in path.parts)
