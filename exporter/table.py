"""A small table of text: drawn by rich on a terminal that has it, aligned columns elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

__all__ = ["Table", "count_things", "format_bytes", "format_facts"]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; columns named in `numeric` are set flush right, `notes` come last.

    The rows whose numbers are in `alarming` are red where there are colours.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: frozenset[str] = frozenset()
    notes: Sequence[str] = ()
    alarming: frozenset[int] = frozenset()

    def render(self, *, is_rich: bool) -> str:
        """The table as text, without a final newline."""
        drawn = self._draw_rich() if is_rich and find_spec("rich") else self._draw_plain()
        return "\n".join([drawn, *self.notes])

    def _draw_plain(self) -> str:
        lines = [self.columns, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        return "\n".join([self.title, *("  " + self._align(line, widths) for line in lines)])

    def _align(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        aligned = [
            cell.rjust(width) if column in self.numeric else cell.ljust(width)
            for cell, width, column in zip(cells, widths, self.columns, strict=True)
        ]
        return "  ".join(aligned).rstrip()

    def _draw_rich(self) -> str:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(title=self.title, title_justify="left", box=SIMPLE_HEAD)
        for column in self.columns:
            justify: Literal["left", "right"] = "right" if column in self.numeric else "left"
            table.add_column(column, justify=justify, overflow="fold")
        for number, row in enumerate(self.rows):
            style = "bold red" if number in self.alarming else None
            table.add_row(*(Text(cell) for cell in row), style=style)
        console = Console()
        with console.capture() as capture:
            console.print(table)
        return capture.get().rstrip("\n")


def format_bytes(count: int | None) -> str:
    """A size for people, in decimal units; nothing for None."""
    if count is None:
        return ""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def count_things(number: int, name: str) -> str:
    """As "1 file" and "2 files"."""
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def format_facts(title: str, facts: Mapping[str, str]) -> str:
    """A title and named facts under it, aligned."""
    width = max(map(len, facts), default=0)
    return "\n".join([title, *(f"  {name:{width}}  {fact}" for name, fact in facts.items())])
