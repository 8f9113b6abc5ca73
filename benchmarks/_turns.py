"""Lets what is measured take turns, round by round, so that a slow minute hits all of it."""

import statistics
from collections.abc import Callable, Mapping
from typing import TypeVar

from benchmarks._report import show_spread

__all__ = ["print_seconds", "take_turns"]

_Value = TypeVar("_Value")


def take_turns(
    variants: Mapping[str, Callable[[], _Value]], rounds: int
) -> dict[str, list[_Value]]:
    """What each gave, by name, a value a round; a first round warms up and does not count."""
    values: dict[str, list[_Value]] = {name: [] for name in variants}
    for round_index in range(rounds + 1):
        for name, measure in variants.items():
            value = measure()
            if round_index:
                values[name].append(value)
    return values


def print_seconds(
    variants: Mapping[str, Callable[[], float]], rounds: int, what: str, ratio: str
) -> None:
    """Let them take turns and print a line for each; `ratio` says what its time over that of the
    first one is, taken within a round."""
    seconds = take_turns(variants, rounds)
    first = next(iter(seconds.values()))
    print(f"{what + ':':34} {'median':>9} {'min':>9} {'max':>9}   {ratio}")
    for name, values in seconds.items():
        ratios = [a / b for a, b in zip(values, first, strict=True)]
        print(
            f"  {name:32} {statistics.median(values):9.4f} {min(values):9.4f} {max(values):9.4f}   "
            f"{show_spread(ratios)}"
        )
