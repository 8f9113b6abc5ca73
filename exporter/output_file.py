"""A file that a user asks for, as a report or a picture: looked at beforehand, written whole."""

from pathlib import Path

from quatrain.exporter.bundle import name_unfinished, write_file
from quatrain.runtime.errors import RequestError

__all__ = ["check_output_file", "write_output_file"]


def check_output_file(path: Path, asked: str) -> None:
    """Before minutes of work: is there a place for the file?

    Raises:
        RequestError: There is no such folder, what is there is no file, or nothing can be written
            there. It begins with `asked`.
    """
    found = _find_obstacle(path)
    if found is not None:
        raise RequestError(asked, found, "name a file in a folder that can be written to")


def _find_obstacle(path: Path) -> str | None:
    try:
        target = path.resolve()
        if not target.parent.is_dir():
            return f"there is no folder {target.parent}"
        if target.is_dir():
            return "it is a folder"
        if target.exists() and not target.is_file():
            return "it is a device or a pipe, and a file would take its place"
        unfinished = name_unfinished(target)
        unfinished.touch()  # as `write_file` will
        unfinished.unlink()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        return getattr(error, "strerror", None) or str(error)
    return None


def write_output_file(path: Path, content: str | bytes, asked: str) -> None:
    """Write the file whole or not at all, even over an older one; what a link leads to, not the
    link. Stray bytes of file names in a text become escapes.

    Raises:
        RequestError: It cannot be written. It begins with `asked`.
    """
    if isinstance(content, str):
        content = content.encode("utf-8", "backslashreplace")
    try:
        write_file(path.resolve(), content)
    except OSError as error:
        found = error.strerror or str(error)
        fix = "make room there, or name a file that can be written"
        raise RequestError(asked, found, fix) from error
