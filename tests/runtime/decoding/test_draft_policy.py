"""Drafting that adapts: simulated models whose acceptance and speed are known."""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from quatrain.runtime.decoding.draft_policy import DraftPolicy, FixedDraft, make_draft_policy
from quatrain.runtime.decoding.draft_record import DraftRecord
from quatrain.runtime.decoding.draft_switch import DraftSwitch

Policy = DraftPolicy | FixedDraft


@dataclass
class Costs:
    """Seconds of a plain step, of a guess, and of verifying guesses: of the call and of each."""

    plain: float = 0.01
    guess: float = 0.001
    call: float = 0.01
    row: float = 0.0005
    noise: float = 0.0

    def verify(self, num_drafted: int) -> float:
        return self.call + self.row * num_drafted


@dataclass
class Outcome:
    tokens: int
    seconds: float
    choices: list[int]

    def loss(self, costs: Costs) -> float:
        """Time taken over the time of plain decoding, less 1."""
        return self.seconds / (self.tokens * costs.plain) - 1


def simulate(
    policy: Policy,
    costs: Costs,
    acceptance: Callable[[int, int], float],
    num_tokens: int,
    seed: int = 0,
) -> Outcome:
    """Decode one sequence; `acceptance` is the chance of a guess by tokens so far and place."""
    rng = random.Random(seed)
    outcome = Outcome(0, 0.0, [])

    def disturb(seconds: float) -> float:
        return seconds * (1 + costs.noise * rng.expovariate(1))

    while outcome.tokens < num_tokens:
        count = policy.choose()
        outcome.choices.append(count)
        if not count:
            seconds = disturb(costs.plain)
            policy.record_plain(seconds)
            outcome.tokens += 1
            outcome.seconds += seconds
            continue
        right = 0
        while right < count and rng.random() < acceptance(outcome.tokens, right):
            right += 1
        draft, verify = disturb(costs.guess * count), disturb(costs.verify(count))
        policy.record_round(count, right, draft, verify)
        outcome.tokens += right + 1
        outcome.seconds += draft + verify
    return outcome


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_high_acceptance_drafts_much_and_is_nearly_as_fast_as_can_be(noise: float) -> None:
    costs = Costs(noise=noise)
    outcome = simulate(DraftPolicy(8), costs, lambda *_: 0.95, 2000)
    rounds = [count for count in outcome.choices[10:] if count]
    assert sorted(rounds)[len(rounds) // 2] >= 7
    fixed = simulate(FixedDraft(8), costs, lambda *_: 0.95, 2000)
    assert outcome.seconds < 1.08 * fixed.seconds
    assert outcome.loss(costs) < -0.5


def test_middling_acceptance_finds_the_middle() -> None:
    """At 0.6 and these costs, three guesses are best: found by trying all fixed numbers."""
    costs = Costs()
    fixed = {n: simulate(FixedDraft(n), costs, lambda *_: 0.6, 20000) for n in range(1, 9)}
    best = min(fixed, key=lambda n: fixed[n].seconds / fixed[n].tokens)
    assert 2 <= best <= 5
    outcome = simulate(DraftPolicy(8), costs, lambda *_: 0.6, 20000)
    rate = outcome.seconds / outcome.tokens
    assert rate < 1.06 * fixed[best].seconds / fixed[best].tokens
    assert rate < 0.98 * fixed[8].seconds / fixed[8].tokens


def test_guesses_right_at_the_first_places_only_are_not_made_further() -> None:
    outcome = simulate(DraftPolicy(8), Costs(), lambda _, place: float(place < 2), 2000)
    rounds = [count for count in outcome.choices[40:] if count]
    assert rounds.count(2) > 0.8 * len(rounds)


@pytest.mark.parametrize("num_tokens", [100, 1000, 5000])
@pytest.mark.parametrize(
    "costs",
    [Costs(), Costs(noise=0.2), Costs(guess=0.003, row=0.003), Costs(guess=0.005, call=0.012)],
    ids=["usual", "noisy", "slow rows", "slow guesses"],
)
def test_acceptance_of_nothing_goes_off_and_loses_little(costs: Costs, num_tokens: int) -> None:
    for seed in range(5):
        policy = DraftPolicy(8)
        outcome = simulate(policy, costs, lambda *_: 0.0, num_tokens, seed)
        plain = simulate(FixedDraft(0), costs, lambda *_: 0.0, num_tokens, seed + 100)
        assert outcome.seconds < 1.05 * plain.seconds
        statistics = policy.statistics
        assert [period.is_on for period in statistics.periods] == [True, False]
        assert statistics.periods[0].tokens <= 12
        assert statistics.rounds <= 12 + num_tokens / 500


def test_drafting_that_is_right_but_too_slow_goes_off() -> None:
    costs = Costs(guess=0.02)
    policy = DraftPolicy(8)
    outcome = simulate(policy, costs, lambda *_: 1.0, 2000)
    assert outcome.loss(costs) < 0.05
    assert policy.statistics.off_share > 0.95


def test_trials_grow_rarer() -> None:
    outcome = simulate(DraftPolicy(8), Costs(), lambda *_: 0.0, 5000)
    trials = [step for step, count in enumerate(outcome.choices) if count][3:]
    gaps = [after - before for before, after in itertools.pairwise(trials)]
    assert gaps[0] < gaps[1] < gaps[2] and max(gaps) <= 513
    assert all(outcome.choices[step] == 1 for step in trials)


@pytest.mark.parametrize("seed", range(5))
def test_it_comes_back_when_guesses_become_right(seed: int) -> None:
    policy, costs = DraftPolicy(8), Costs()
    outcome = simulate(policy, costs, lambda tokens, _: 0.9 if tokens > 500 else 0.0, 3000, seed)
    periods = policy.statistics.periods
    assert [period.is_on for period in periods[:3]] == [True, False, True]
    assert sum(period.tokens for period in periods[:2]) < 500 + 600
    assert outcome.loss(costs) < -0.3


@pytest.mark.parametrize("seed", range(5))
def test_text_that_turns_every_way_loses_nothing(seed: int) -> None:
    def acceptance(tokens: int, _: int) -> float:
        return 0.8 if tokens // 300 % 2 else 0.05

    policy, costs = DraftPolicy(8), Costs(guess=0.002, row=0.001, noise=0.1)
    outcome = simulate(policy, costs, acceptance, 6000, seed)
    plain = simulate(FixedDraft(0), costs, acceptance, 6000, seed)
    assert outcome.seconds < plain.seconds


def test_it_does_not_flap_where_drafting_hardly_pays() -> None:
    costs = Costs(noise=0.05)
    for seed in range(3):
        policy = DraftPolicy(8)
        outcome = simulate(policy, costs, lambda *_: 0.14, 5000, seed)
        plain = simulate(FixedDraft(0), costs, lambda *_: 0.14, 5000, seed)
        assert outcome.seconds < 1.05 * plain.seconds
        assert len(policy.statistics.periods) < 30


def test_the_same_inputs_give_the_same_choices() -> None:
    runs = [simulate(DraftPolicy(4), Costs(noise=0.3), lambda *_: 0.5, 500) for _ in range(2)]
    assert runs[0] == runs[1]
    assert max(runs[0].choices) == 4


def test_one_guess_at_most() -> None:
    outcome = simulate(DraftPolicy(1), Costs(), lambda *_: 0.9, 500)
    assert set(outcome.choices) == {0, 1}


def test_what_a_call_learned_is_known_to_the_next() -> None:
    switch = DraftSwitch(8)
    simulate(DraftPolicy(8, switch), Costs(), lambda *_: 0.0, 3000)
    second = DraftPolicy(8, switch)
    outcome = simulate(second, Costs(), lambda *_: 0.95, 1000)
    # Off at first, but a pause of hundreds of steps does not outlive the call it was for.
    assert outcome.choices[0] == 0
    assert any(outcome.choices[:40])
    assert second.statistics.off_share < 0.5
    assert simulate(DraftPolicy(8, switch), Costs(), lambda *_: 0.95, 100).choices[0] >= 6


@pytest.mark.parametrize(("draft", "first"), [(0, 0), (4, 4), ("auto", 0)])
def test_a_number_bypasses_measurements(draft: object, first: int) -> None:
    policy = make_draft_policy(draft, max_draft=8)  # type: ignore[arg-type]
    assert policy.choose() == first
    for _ in range(50):
        policy.record_plain(0.01)
        policy.record_round(4, 0, 1.0, 1.0)
    assert draft == "auto" or policy.choose() == first


# --- statistics ---


def test_statistics_of_a_batch_are_exact() -> None:
    policy = FixedDraft(3)
    policy.record_round(3, [3, 1], 0.5, 1.0)
    policy.record_round([3, 2, 0], [0, 2, 0], 0.25, 1.0)
    policy.record_plain(2.0, num_rows=2)
    statistics = policy.statistics
    assert (statistics.rounds, statistics.plain_steps) == (2, 1)
    # 4 + 2, then 1 + 3 + 1, then 1 + 1, in 2 + 3 + 2 steps of rows.
    assert statistics.accepted_per_step == pytest.approx(13 / 7)
    assert statistics.acceptance == pytest.approx([3 / 4, 2 / 4, 1 / 3])
    assert statistics.off_share == 0
    assert [(p.is_on, p.tokens, p.seconds) for p in statistics.periods] == [(True, 13, 4.75)]
    seconds = (statistics.draft_seconds, statistics.verify_seconds, statistics.plain_seconds)
    assert seconds == (0.75, 2.0, 2.0)
    assert statistics.speedup is None


def test_a_row_that_ends_on_a_guess_gets_nothing_more() -> None:
    policy = FixedDraft(3)
    policy.record_round(3, [2, 3], 0.5, 1.0, num_taken=[2, 4])
    assert policy.statistics.accepted_per_step == pytest.approx(6 / 2)
    assert policy.statistics.acceptance == pytest.approx([1.0, 1.0, 0.5])


def test_statistics_of_nothing() -> None:
    statistics = DraftPolicy(8).statistics
    assert (statistics.rounds, statistics.accepted_per_step, statistics.acceptance) == (0, 0, [])
    assert statistics.periods == [] and statistics.speedup is None


def test_drafting_left_out_counts_as_off() -> None:
    policy = FixedDraft(0)
    for _ in range(5):
        policy.record_plain(1.0)
    assert (policy.statistics.off_share, policy.statistics.accepted_per_step) == (1.0, 1.0)
    assert policy.statistics.speedup == pytest.approx(1.0)


def test_the_speedup_is_that_over_plain_steps() -> None:
    policy, costs = DraftPolicy(8), Costs()
    outcome = simulate(policy, costs, lambda *_: 0.9, 2000)
    assert policy.statistics.speedup == pytest.approx(1 / (1 + outcome.loss(costs)))
    total = sum(period.tokens for period in policy.statistics.periods)
    assert total == outcome.tokens
    assert sum(p.seconds for p in policy.statistics.periods) == pytest.approx(outcome.seconds)


def test_batches_of_a_call_share_their_record() -> None:
    record = DraftRecord()
    for draft in (2, 3):
        make_draft_policy(draft, 8, record=record).record_round(draft, draft, 0.1, 0.1)
    assert record.statistics.accepted_per_step == pytest.approx(7 / 2)
