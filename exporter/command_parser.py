"""The parser of `quatrain` and of each command: wrong usage is told with the usage it is about."""

import argparse
import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

__all__ = ["CommandParser"]

_WRONG_USAGE = 2


class CommandParser(argparse.ArgumentParser):
    """Takes no abbreviations, and exits 2 where it cannot read the words of a command line; with
    --json among them there is a document of the error on stdout, too. `commands` are the names of
    those that it leads to."""

    def __init__(
        self, *, words: Sequence[str], commands: Collection[str] = (), **settings: Any
    ) -> None:
        super().__init__(allow_abbrev=False, **settings)
        self._words, self._commands = words, commands

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse words of no meaning here: argparse would hand them to the parser of all commands,
        which shows its own usage."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Show the usage and what is wrong with the words, and exit 2."""
        guess = self._guess_command() if self._commands else self._guess_flags()
        fix = f"{guess}`{self.prog} --help` lists what there is"
        if "--json" in self._words:
            self._write_document(message, fix)
        self.print_usage(sys.stderr)
        self.exit(_WRONG_USAGE, f"{self.prog}: error: {message}\nfix:   {fix}\n")

    def _guess_command(self) -> str:
        asked = next((word for word in self._words if not word.startswith("-")), "")
        if asked in self._commands:
            return "write the flags of a command behind its name; "
        near = _find_close(asked, self._commands)
        return f"did you mean {near[0]}? " if near else ""

    def _guess_flags(self) -> str:
        known = self._option_string_actions
        flags = [word.partition("=")[0] for word in self._words if word.startswith("--")]
        unknown = [flag for flag in dict.fromkeys(flags) if flag not in known]
        near = [match for flag in unknown for match in _find_close(flag, known)]
        return f"did you mean {', '.join(near)}? " if near else ""

    def _write_document(self, found: str, fix: str) -> None:
        import shlex

        from quatrain.exporter.commands.console import Console

        console = Console(is_json=True)
        asked = shlex.join(["quatrain", *self._words])
        console.set_document({"error": {"asked": asked, "found": found, "fix": fix}})
        with suppress(OSError):  # that nobody reads it
            console.write_document()


def _find_close(word: str, known: Iterable[str]) -> list[str]:
    """What was meant, or nothing. Imported here, where nobody waits for it."""
    from difflib import get_close_matches

    return get_close_matches(word, list(known), n=1)
