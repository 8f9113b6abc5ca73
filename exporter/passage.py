"""The text that is run where none is named: the opening of Shakespeare's Coriolanus."""

from importlib.resources import files

__all__ = ["read_passage"]


def read_passage() -> str:
    """Some 9,000 characters of English, in the public domain."""
    return files("quatrain.exporter").joinpath("passage.txt").read_text(encoding="utf-8")
