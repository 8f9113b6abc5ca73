"""Where a command writes: its result to stdout, everything else to stderr."""

import ctypes
import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path

from quatrain.exporter.progress import Progress
from quatrain.exporter.table import Table

__all__ = ["Console"]


class Console:
    """What a command is given to write with.

    With `is_json` the result is exactly one JSON document on stdout, written once the command
    is through; without, it is text for people.
    """

    def __init__(self, *, is_json: bool) -> None:
        self.is_json = is_json
        self._document: object = None

    def show(self, text: str, end: str = "\n") -> None:
        """Write a piece of the result for people at once; nothing with --json."""
        if not self.is_json:
            sys.stdout.write(_printable(text, sys.stdout.encoding) + end)
            sys.stdout.flush()

    def show_table(self, table: Table) -> None:
        """Write a table for people; nothing with --json."""
        if not self.is_json:
            self.show(table.render(is_rich=sys.stdout.isatty()))

    def say(self, line: str) -> None:
        """Tell how things go, on stderr; that nobody can hear it is no reason to stop."""
        with suppress(OSError):
            sys.stderr.write(_printable(line, sys.stderr.encoding) + "\n")
            sys.stderr.flush()

    def make_progress(self) -> Progress:
        """Stages of long work, told on stderr."""
        return Progress(self.say)

    def set_document(self, document: object) -> None:
        """Set the result for scripts: dataclasses, records and containers, or JSON as bytes."""
        self._document = document

    def set_error(self, asked: str, found: str, fix: str) -> None:
        """Tell of an error. The document says it, too, beside what there was before: a result stays
        one if a picture of it cannot be written."""
        self.say(f"asked: {asked}\nfound: {found}\nfix:   {fix}")
        error = {"error": {"asked": asked, "found": found, "fix": fix}}
        known = None if self._document is None else json.loads(self._encode_document())
        self._document = {**known, **error} if isinstance(known, dict) else error

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Run a command; with --json nothing but its document reaches stdout."""
        if not self.is_json:
            yield
            return
        with _stdout_to_stderr():
            yield
        self.write_document()

    def write_document(self) -> None:
        """Write the JSON document and a newline to stdout."""
        data = self._encode_document()
        sys.stdout.flush()
        sys.stdout.buffer.write(data.rstrip(b"\n") + b"\n")
        sys.stdout.flush()

    def _encode_document(self) -> bytes:
        document = self._document
        return document if isinstance(document, bytes) else _encode(document)


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Send what is written to stdout to stderr meanwhile, by native libraries, too."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        ctypes.CDLL(None).fflush(None)  # what C code printed is still in C's own buffer
        os.dup2(saved, 1)
        os.close(saved)


def _encode(document: object) -> bytes:
    import msgspec

    data = _drop_non_finite(msgspec.to_builtins(document, enc_hook=_plain))
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace")  # stray bytes of file names: \udc..


def _plain(value: object) -> object:
    """What `msgspec` does not know: paths, and NumPy scalars and arrays."""
    if isinstance(value, Path):
        return str(value)
    to_list = getattr(value, "tolist", None)
    if to_list is None:
        raise TypeError(f"no JSON for {type(value).__name__}")
    return to_list()


def _drop_non_finite(data: object) -> object:
    """The same with None for NaN and infinity, which JSON does not have."""
    if isinstance(data, dict):
        return {key: _drop_non_finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_drop_non_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def _printable(text: str, encoding: str | None) -> str:
    """`text` with what `encoding` cannot express (a file name's stray bytes) as escapes."""
    encoding = encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
