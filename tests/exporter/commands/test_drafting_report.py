"""Statistics of drafting as text."""

from quatrain.exporter.commands.drafting_report import describe_drafting
from quatrain.runtime.decoding.draft_policy import FixedDraft
from quatrain.runtime.results import DraftPeriod, DraftStatistics


def test_what_drafting_gained() -> None:
    periods = [DraftPeriod(True, 60, 1.0), DraftPeriod(False, 40, 1.0), DraftPeriod(True, 100, 1.0)]
    statistics = DraftStatistics(
        rounds=55,
        plain_steps=42,
        accepted_per_step=2.06,
        acceptance=[0.8, 0.555],
        off_share=0.2,
        periods=periods,
        draft_seconds=0.25,
        verify_seconds=1.5,
        plain_seconds=1.25,
        speedup=1.4321,
    )
    assert describe_drafting(statistics) == [
        "drafting: 2.06 tokens per step in 55 rounds and 42 plain steps, 1.43 times as fast as"
        " plain steps",
        "accepted by place: 80 %, 56 %; 0.250 s drafting, 1.500 s verifying",
        "drafting was off for 20.0 % of these tokens: on for 60, off for 40, on for 100",
    ]


def test_what_is_not_known_is_not_told() -> None:
    policy = FixedDraft(2)
    assert describe_drafting(policy.statistics) == ["drafting: nothing to draft"]
    policy.record_round(2, 1, 0.5, 1.0)
    lines = describe_drafting(policy.statistics)
    assert lines[0] == "drafting: 2.00 tokens per step in 1 rounds and 0 plain steps"
    assert len(lines) == 2


def test_a_seed_is_named_where_it_kept_drafting_off() -> None:
    policy = FixedDraft(0)
    policy.record_plain(1.0)
    [_, off] = describe_drafting(policy.statistics)
    assert off == "drafting was off for 100.0 % of these tokens: off for 1"
    [_, off] = describe_drafting(policy.statistics, is_off_by_seed=True)
    assert off == "drafting was off for 100.0 % of these tokens because of the seed: off for 1"


def test_many_periods_are_shortened() -> None:
    periods = [DraftPeriod(index % 2 == 0, 1, 1.0) for index in range(20)]
    statistics = DraftStatistics(10, 10, 1.0, [0.0], 0.5, periods, 1.0, 1.0, 1.0, None)
    assert describe_drafting(statistics)[-1].endswith("off for 1, and 12 more periods")
