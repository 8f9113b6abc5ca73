"""What counts as a step: tokens between which nothing was run are one."""

import pytest

from quatrain.exporter.bench import step_clock
from quatrain.exporter.bench.step_clock import StepClock


def test_tokens_of_one_verification_are_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = 0.0, {"decoder": 0, "drafter": 0}
    monkeypatch.setattr(step_clock.time, "perf_counter", lambda: now)
    clock = StepClock(lambda: dict(calls))

    # Time passed before the token, and calls: prompt, a plain step, a round of three, a round of 1.
    for seconds, verified, drafted in (
        *((5.0, 2, 0), (1.0, 1, 0)),
        *((3.0, 1, 2), (0.25, 0, 0), (0.25, 0, 0)),
        (2.0, 1, 2),
    ):
        now += seconds
        calls["decoder"] += verified
        calls["drafter"] += drafted
        clock.tick()

    assert clock.seconds == [5.0, 1.0, 3.5, 2.0]
