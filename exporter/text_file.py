"""Reads a text file a user names."""

from pathlib import Path

from quatrain.runtime.errors import RequestError

__all__ = ["read_text"]


def read_text(path: Path) -> str:
    """The UTF-8 text of a file; raises `RequestError` where there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RequestError(
            f"read the text file {path}", error.strerror or str(error), "name a readable file"
        ) from error
    except UnicodeDecodeError as error:
        raise RequestError(
            f"read the text file {path}",
            f"it is not UTF-8: {error.reason} at byte {error.start}",
            "convert it to UTF-8",
        ) from error
