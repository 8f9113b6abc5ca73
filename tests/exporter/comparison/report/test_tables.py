"""Comparisons in a terminal and for scripts."""

import json
from pathlib import Path

import msgspec
from tests.exporter.comparison.report.made_up import make_comparison

from quatrain.exporter.comparison import Comparison, RunnerInfo
from quatrain.exporter.comparison.report import (
    describe_verdict,
    list_tables,
    make_document,
    write_json,
)


def test_the_checks_say_what_was_allowed_and_in_which_direction() -> None:
    (table,) = (t for t in list_tables(make_comparison()) if t.title == "Checks")
    drawn = [line.split("  ") for line in table.render(is_rich=False).splitlines()]
    cells = [[cell.strip() for cell in line if cell] for line in drawn]
    assert ["logits", "fp32", "ok", "1e-07", "at most 0.0001"] in [row[:5] for row in cells]
    assert ["top-1 agreement", "fp32", "ok", "1", "at least 0.98"] in [row[:5] for row in cells]
    assert ["shapes", "deployment", "ok", "as recorded", "as recorded"] in cells
    assert table.alarming == frozenset()


def test_failures_come_last_and_are_alarming() -> None:
    tables = list_tables(make_comparison(broken=True))
    checks, divergences = tables[-2:]
    assert [number for number, row in enumerate(checks.rows) if row[2] == "FAILED"] == [4, 5]
    assert checks.alarming == {4, 5}
    assert divergences.rows[0][:3] == ("deployment", "layers.3.attention", "3")
    assert "FAILED" in checks.render(is_rich=True)


def test_tables_without_rows_are_not_shown() -> None:
    titles = [table.title for table in list_tables(make_comparison())]
    assert "Other most likely tokens" not in titles and "Cases" in titles


def test_the_document_has_the_verdict_first_and_only_json(tmp_path: Path) -> None:
    comparison = make_comparison(broken=True)
    write_json(tmp_path / "report.json", comparison)
    document = json.loads((tmp_path / "report.json").read_bytes(), parse_constant=int)
    assert next(iter(document)) == "passed" and document["passed"] is False
    assert document["checks"][5]["value"] == "nan"
    assert document["checks"][0].keys() >= {"name", "passed", "value", "tolerance"}
    assert document["plots"]["selection_overlap"]["fp32"]["0"] == 1.0
    assert make_document(make_comparison())["passed"] is True


def test_nothing_compared_is_no_success() -> None:
    skipped = [RunnerInfo("tensorrt", "skipped", "no GPU here")]
    comparison = Comparison("bundle", "checkpoint", "as it is", "dense", [], skipped, [])
    assert make_document(comparison)["passed"] is False
    assert "every runner was skipped" in describe_verdict(comparison)


def test_a_verdict_names_the_first_divergence() -> None:
    broken = make_comparison(broken=True)
    assert "0.4 of the largest magnitude where 0.02 is allowed" in describe_verdict(broken)
    (found,) = broken.divergences
    found = msgspec.structs.replace(found, kind="not finite", position=None)
    verdict = describe_verdict(msgspec.structs.replace(broken, divergences=[found]))
    assert verdict.endswith("layers.3.attention of deployment is NaN or infinite.")
    assert "All 8 checks of fp32, deployment" in describe_verdict(make_comparison())
