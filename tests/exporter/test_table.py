"""Tables and sizes for people."""

import pytest

from quatrain.exporter.commands.stage_table import make_stage_table
from quatrain.exporter.progress import Stage
from quatrain.exporter.table import Table, format_bytes, format_facts

TABLE = Table(
    "Fruit", ("name", "count"), [("fig", "7"), ("[bold]", "12")], frozenset({"count"}), ["n"]
)


def test_plain_columns_are_aligned() -> None:
    assert TABLE.render(is_rich=False).splitlines() == [
        "Fruit",
        "  name    count",
        "  fig         7",
        "  [bold]     12",
        "n",
    ]


def test_rich_shows_the_same_cells() -> None:
    pytest.importorskip("rich")
    shown = TABLE.render(is_rich=True)
    assert all(cell in shown for cell in ("Fruit", "fig", "[bold]", "12", "count"))


def test_rich_keeps_the_cells_of_rows_in_red() -> None:
    pytest.importorskip("rich")
    table = Table("Fruit", ("name",), [("fig",), ("[red]",)], alarming=frozenset({1}))
    shown = table.render(is_rich=True)
    assert "fig" in shown and "[red]" in shown


def test_an_empty_table_has_its_headings() -> None:
    assert Table("None", ("a", "b"), []).render(is_rich=False) == "None\n  a  b"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, ""),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (16_381_516_776, "16.4 GB"),
        (5 * 10**15, "5,000.0 TB"),
    ],
)
def test_sizes(count: int | None, text: str) -> None:
    assert format_bytes(count) == text


def test_facts_are_aligned() -> None:
    assert format_facts("Title", {"a": "1", "long": "2"}) == "Title\n  a     1\n  long  2"


def test_stages_are_summed() -> None:
    table = make_stage_table(
        [Stage("read", 1.0, None, 5_000_000), Stage("write", 2.5, 10**9, 10**7)]
    )
    assert table.rows[-1] == ("total", "3.50", "", "10.0 MB")
    assert table.rows[1] == ("write", "2.50", "1.0 GB", "10.0 MB")
    assert make_stage_table([]).rows == [("total", "0.00", "", "0 B")]
