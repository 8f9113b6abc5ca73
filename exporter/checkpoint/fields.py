"""Typed access to settings that a user may have written by hand."""

import math
from collections.abc import Mapping, Sequence

from quatrain.exporter.errors import CheckpointError

__all__ = ["Fields"]


class Fields:
    """The values of one settings file (or a section of it). `null` counts as absent.

    Every accessor raises `CheckpointError` with the file and the key when the value is of the
    wrong type, or is absent where there is no default.
    """

    def __init__(self, values: Mapping[str, object], source: str, prefix: str = "") -> None:
        self.source = source
        self._values = values
        self._prefix = prefix

    def get(self, key: str) -> object:
        """The raw value; None where the key is absent."""
        return self._values.get(key)

    def has(self, key: str) -> bool:
        """Whether the key is there with a value other than null."""
        return self.get(key) is not None

    def has_key(self, key: str) -> bool:
        """Whether the key is there at all, null included."""
        return key in self._values

    def list_others(self, known: Sequence[str]) -> list[str]:
        """The keys that are none of `known` and have a value."""
        return [key for key in self._values if key not in known and self.has(key)]

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer; required where there is no default."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, "an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number; required where there is no default."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "a number")
        try:
            number = float(value)
        except OverflowError as error:
            raise self.wrong(key, "a finite number") from error
        if not math.isfinite(number):
            raise self.wrong(key, "a finite number")
        return number

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above zero; required where there is no default."""
        value = self.number(key, default)
        if value <= 0:
            raise self.wrong(key, "a number above 0")
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        """True or false; required where there is no default."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string; required where there is no default."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """One integer or a list of them; empty where the key is absent."""
        value = self.get(key)
        if value is None:
            return ()
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            raise self.wrong(key, "an integer or a list of integers")
        return tuple(items)

    def texts(self, key: str) -> Sequence[str]:
        """A list of strings; empty where the key is absent."""
        value = self.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, "a list of strings")
        return value

    def section(self, key: str) -> "Fields":
        """A nested object; empty where the key is absent."""
        value = self.get(key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.wrong(key, "an object")
        return Fields(value, self.source, f"{self._prefix}{key}.")

    def name(self, key: str) -> str:
        """The key with the sections it is nested in."""
        return f"{self._prefix}{key}"

    def wrong(self, key: str, wanted: str) -> CheckpointError:
        """The error for a value that is not what it should be."""
        shown = repr(self.get(key))
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        return CheckpointError(
            f"{self.name(key)} in {self.source}: {wanted}",
            shown if self.has(key) else "no such key",
            f"correct {self.name(key)} in {self.source}",
        )

    def unknown(self, key: str, known: Sequence[str]) -> CheckpointError:
        """The error for a choice that a model may have been trained with, and quatrain lacks."""
        names = ", ".join(known)
        return CheckpointError(
            f"{self.name(key)} in {self.source}: one of {names}",
            repr(self.get(key))[:80],
            "use a checkpoint that was trained with one of these, which is all that quatrain"
            f" knows; another {self.name(key)} than it was trained with would give wrong numbers"
            " silently",
        )

    def _value(self, key: str, default: object) -> object:
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.wrong(key, "a value")
        return value
