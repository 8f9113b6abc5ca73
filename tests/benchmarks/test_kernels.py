"""The table of compiled kernels and their calls, for one small case."""

from pathlib import Path

import pytest

from benchmarks._kernel_cases import RouterCase, list_realistic_cases
from benchmarks.kernels import DEVICES, find_roofline_seconds, write_tables


def test_the_slower_of_memory_and_arithmetic_counts():
    a100 = DEVICES[0]
    assert find_roofline_seconds(2_039_000_000, 1, a100) == pytest.approx(1e-3)
    assert find_roofline_seconds(1, 312_000_000_000, a100) == pytest.approx(1e-3)


def test_a_case_has_its_line_in_both_tables():
    case = RouterCase("small", rows=1, hidden=96, inner=32, router=96)
    calls, compiled = write_tables([case], sms=["8.6"]).split("## Compiled")
    assert "| ExitRouter | small | 1 | 0.014 | 0.01 |" in calls
    (line,) = [line for line in compiled.splitlines() if "exit_router.route_exit" in line]
    assert "hidden_size 96" in line and "16 x" in line


def test_the_committed_tables_have_every_call(root: Path):
    text = (root / "benchmarks" / "kernels.md").read_text("utf-8")
    for case in list_realistic_cases():
        assert f"| {case.operator} | {case.name} |" in text
