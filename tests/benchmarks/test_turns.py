"""Turns: who measures when, what counts, and the table of seconds."""

from functools import partial

import pytest

from benchmarks._turns import print_seconds, take_turns


def test_they_take_turns_and_the_first_round_does_not_count() -> None:
    calls: list[str] = []

    def measure(name: str) -> int:
        calls.append(name)
        return len(calls)

    values = take_turns({name: partial(measure, name) for name in "ab"}, rounds=2)
    assert calls == ["a", "b"] * 3
    assert values == {"a": [3, 5], "b": [4, 6]}


def test_ratios_are_taken_within_a_round(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = iter([9.0, 1.0, 2.0]), iter([9.0, 2.0, 8.0])
    print_seconds({"one": first.__next__, "two": second.__next__}, 2, "seconds", "times one")
    head, one, two = capsys.readouterr().out.splitlines()
    assert head.split() == ["seconds:", "median", "min", "max", "times", "one"]
    assert one.split(maxsplit=4) == ["one", "1.5000", "1.0000", "2.0000", "1.00 (1.00 to 1.00)"]
    assert two.split(maxsplit=4) == ["two", "5.0000", "2.0000", "8.0000", "3.00 (2.00 to 4.00)"]
