"""Steps of long work: when what there is of it is saved."""

import time

import pytest

from quatrain.exporter import steps
from quatrain.exporter.progress import Progress


def test_they_go_on_from_where_they_were_and_are_saved_at_the_end() -> None:
    lines: list[str] = []
    saved: list[int] = []
    walk = steps.walk_steps("windows", 5, 2, Progress(lines.append), save=saved.append)
    assert list(walk) == [2, 3, 4]
    assert saved == [5] and lines == ["  going on after 2 of 5 windows"]


def test_saving_takes_a_tenth_of_the_time_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_SAVE_SECONDS", 0.0)
    saved: list[int] = []

    def save(done: int) -> None:
        saved.append(done)
        time.sleep(0.05)

    for _ in steps.walk_steps("steps", 20, 0, Progress(), save=save):
        time.sleep(0.001)
    assert saved == [1, 20]
