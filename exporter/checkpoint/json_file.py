"""Reading a JSON object from a file that may be damaged."""

import json
from collections import Counter
from pathlib import Path

from quatrain.exporter.errors import CheckpointError

__all__ = ["parse_json_object", "read_json_object"]


def read_json_object(path: Path) -> dict[str, object]:
    """Read a file that holds one JSON object.

    Raises:
        CheckpointError: The file cannot be read, is no JSON, or holds something else.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"reading {path}", f"{error.strerror or error}", "check the file and its permissions"
        ) from error
    try:
        return parse_json_object(text)
    except ValueError as error:
        raise CheckpointError(
            f"reading {path} as a JSON object", str(error), f"fetch {path.name} again or repair it"
        ) from error


def parse_json_object(text: bytes) -> dict[str, object]:
    """Parse UTF-8 JSON text that must be one object, in which no key may occur twice.

    Raises:
        ValueError: The text is anything else; the message says what.
    """
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_unique_keys)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError(f"it holds a JSON {type(value).__name__}, not an object")
    return value


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f"the key {twice!r} occurs twice")
    return values
