"""How many tokens to draft in the next round: as measured, or a fixed number."""

from typing import Literal

from quatrain.runtime.decoding.draft_record import Counts, DraftRecord, list_rows
from quatrain.runtime.decoding.draft_switch import DraftSwitch
from quatrain.runtime.results import DraftStatistics

__all__ = ["DraftPolicy", "FixedDraft", "make_draft_policy"]


class FixedDraft:
    """Drafts the same number of tokens in every round; 0: none."""

    def __init__(self, num_drafted: int, record: DraftRecord | None = None) -> None:
        self._num_drafted = num_drafted
        self._record = DraftRecord() if record is None else record

    @property
    def statistics(self) -> DraftStatistics:
        """Of the rounds and steps so far."""
        return self._record.statistics

    def choose(self) -> int:
        """Guesses of the next round; 0 for a plain step."""
        return self._num_drafted

    def record_round(
        self,
        num_drafted: Counts,
        num_accepted: Counts,
        seconds_draft: float,
        seconds_verify: float,
        num_taken: Counts | None = None,
    ) -> None:
        """See `DraftPolicy.record_round`."""
        counts = list_rows(num_drafted, num_accepted, num_taken)
        self._record.add_round(
            counts, seconds_draft, seconds_verify, is_on=True, plain_seconds=None
        )

    def record_plain(self, seconds: float, num_rows: int = 1) -> None:
        """See `DraftPolicy.record_plain`."""
        self._record.add_plain(seconds, num_rows, is_on=self._num_drafted > 0)


class DraftPolicy:
    """Drafts as many tokens as make the most tokens per second, and none where that is plain
    decoding: see `DraftSwitch`. Depends on nothing but what it is told.

    Args:
        max_draft: The most tokens to draft in a round, at least 1.
        switch: What earlier calls learned of the same model and batch size.
        record: Where to count; shared by the batches of a call.
    """

    def __init__(
        self,
        max_draft: int,
        switch: DraftSwitch | None = None,
        record: DraftRecord | None = None,
    ) -> None:
        self._switch = DraftSwitch(max_draft) if switch is None else switch
        self._record = DraftRecord() if record is None else record
        self._switch.expect_call()

    @property
    def statistics(self) -> DraftStatistics:
        """Of the rounds and steps so far."""
        return self._record.statistics

    def choose(self) -> int:
        """Guesses of the next round; 0 for a plain step."""
        return self._switch.choose()

    def record_round(
        self,
        num_drafted: Counts,
        num_accepted: Counts,
        seconds_draft: float,
        seconds_verify: float,
        num_taken: Counts | None = None,
    ) -> None:
        """A round was made.

        Args:
            num_drafted: Guesses of every row, or of each; 0 for a row that had no room for any.
            num_accepted: How many of them were right: of the only row, or of each.
            seconds_draft: Of all guesses together.
            seconds_verify: Of all the rest of the round.
            num_taken: Tokens that it gave the only row, or each. Default: the guesses that were
                right and one more, which a sequence that ends does not get.
        """
        counts = list_rows(num_drafted, num_accepted, num_taken)
        is_on = self._switch.is_on
        self._switch.learn_round(counts.drafted, counts.accepted, seconds_draft, seconds_verify)
        self._record.add_round(
            counts,
            seconds_draft,
            seconds_verify,
            is_on=is_on,
            plain_seconds=self._switch.plain_seconds,
        )

    def record_plain(self, seconds: float, num_rows: int = 1) -> None:
        """A step without guesses was made, and gave each of `num_rows` rows a token."""
        self._record.add_plain(seconds, num_rows, is_on=self._switch.is_on)
        self._switch.learn_plain(seconds)


def make_draft_policy(
    draft: Literal["auto"] | int,
    max_draft: int,
    switch: DraftSwitch | None = None,
    record: DraftRecord | None = None,
) -> DraftPolicy | FixedDraft:
    """The policy of a setting: `auto`, or a number of tokens for every round."""
    if draft == "auto":
        return DraftPolicy(max_draft, switch, record)
    return FixedDraft(draft, record)
