"""A file that a user asks for, as a report or a picture: looked at beforehand, written whole."""

from pathlib import Path

from quatrain.exporter.bundle import write_file
from quatrain.runtime.errors import RequestError

__all__ = ["check_output_file", "write_output_file"]


def check_output_file(path: Path, asked: str) -> None:
    """Before minutes of work: is there a place for the file?

    Raises:
        RequestError: There is no such folder, or what is there is no file. It begins with `asked`.
    """
    found = None
    if not path.absolute().parent.is_dir():
        found = f"there is no folder {path.parent}"
    elif path.is_dir():
        found = "it is a folder"
    elif path.exists() and not path.is_file():
        found = "it is a device or a pipe, and a file would take its place"
    if found is not None:
        raise RequestError(asked, found, "name a file in a folder that exists")


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
        raise RequestError(asked, found, "name a file that can be written") from error
