"""What went wrong in a plugin, kept for whoever called TensorRT.

TensorRT prints what a plugin raises and goes on, or says only that something failed; while it
builds, it even crashes. So plugins note their errors here.
"""

from dataclasses import dataclass

__all__ = ["PluginProblem", "note_problem", "take_problems"]


@dataclass(frozen=True, slots=True)
class PluginProblem:
    """An error of one plugin: its operator's name and what was wrong."""

    operator: str
    text: str

    def __str__(self) -> str:
        return f"{self.operator}: {self.text}"


_problems: dict[PluginProblem, None] = {}


def note_problem(operator: str, text: str) -> None:
    """Keep an error until it is asked for."""
    _problems[PluginProblem(operator, text)] = None


def take_problems() -> list[PluginProblem]:
    """The errors since the last time, each once."""
    taken = list(_problems)
    _problems.clear()
    return taken
