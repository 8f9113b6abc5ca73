"""Statistics of drafting as text."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quatrain.runtime.results import DraftPeriod, DraftStatistics

__all__ = ["describe_drafting"]

_MOST_PERIODS = 8


def describe_drafting(draft: "DraftStatistics", *, is_off_by_seed: bool = False) -> list[str]:
    """Lines for a person: what was accepted, what it gained, and when it was off.

    Args:
        is_off_by_seed: It was off so that drawn tokens can be repeated.
    """
    steps = draft.rounds + draft.plain_steps
    if not steps:
        return ["drafting: nothing to draft"]
    gain = "" if draft.speedup is None else f", {draft.speedup:.2f} times as fast as plain steps"
    lines = [
        f"drafting: {draft.accepted_per_step:.2f} tokens per step in {draft.rounds} rounds and"
        f" {draft.plain_steps} plain steps{gain}"
    ]
    if draft.acceptance:
        shares = ", ".join(f"{100 * share:.0f} %" for share in draft.acceptance)
        lines.append(
            f"accepted by place: {shares}; {draft.draft_seconds:.3f} s drafting,"
            f" {draft.verify_seconds:.3f} s verifying"
        )
    if draft.off_share:
        because = " because of the seed" if is_off_by_seed else ""
        lines.append(
            f"drafting was off for {100 * draft.off_share:.1f} % of these tokens{because}:"
            f" {_list_periods(draft.periods)}"
        )
    return lines


def _list_periods(periods: "list[DraftPeriod]") -> str:
    shown = [f"{'on' if p.is_on else 'off'} for {p.tokens}" for p in periods[:_MOST_PERIODS]]
    more = len(periods) - len(shown)
    return ", ".join(shown) + (f", and {more} more periods" if more else "")
