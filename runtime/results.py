"""What a generation gives back."""

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "DraftPeriod",
    "DraftStatistics",
    "FinishReason",
    "GenerationResult",
    "GenerationStats",
    "StreamDelta",
]

FinishReason = Literal["stop", "length"]
"""`stop`: EOS, a stop token or a stop string; `length`: max_tokens, or the bundle's limit on prompt
and output together (then there are fewer tokens than max_tokens)."""


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """One finished sequence.

    Args:
        text: Without special tokens, the stop token and the stop string. Empty where the bundle has
            no tokenizer.
        token_ids: Everything generated, the token that ended it included.
        prompt_tokens: Tokens of the prompt as fed, BOS included (in a conversation: of this turn).
        output_tokens: Length of `token_ids`.
        exits: For a model with exits the one each token was taken at (the last index: full depth).
        exit_counts: How many tokens were taken at each exit.
        mean_depth: Decoder layers run per token, on average, before its logits were known.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    prompt_tokens: int
    output_tokens: int
    exits: list[int] | None = None
    exit_counts: list[int] | None = None
    mean_depth: float | None = None


@dataclass(frozen=True, slots=True)
class StreamDelta:
    """One step of a stream. `text` may be empty: a character or a stop string is still open.

    The last delta carries `finish_reason` and the counts, the others None.
    """

    text: str
    token_ids: list[int]
    exits: list[int] | None = None
    finish_reason: FinishReason | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class DraftPeriod:
    """Tokens made one after the other with drafting on, or off, and the seconds they took.

    Trials while it is off are part of that period.
    """

    is_on: bool
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DraftStatistics:
    """What drafting did after each sequence's first token.

    Args:
        rounds: Verified rounds of guesses; a batch makes one together.
        plain_steps: Steps without guesses: while drafting is off, and to know how long they take.
        accepted_per_step: Tokens that a round or plain step gave a sequence, on average: 1 without
            drafting, at most one more than guesses are made (the unit of the HiLP paper,
            arXiv 2608.05806).
        acceptance: By place in a round, the share of its guesses that were accepted, all before
            them included.
        off_share: Share of the tokens made while drafting was off: all of them where tokens are
            drawn with a seed and `draft` is `auto`.
        periods: On and off, in order.
        draft_seconds: Making guesses.
        verify_seconds: Verifying them.
        plain_seconds: In plain steps.
        speedup: How many times as fast as plain decoding it was, by the plain steps timed between
            the rounds; None where there were none.
    """

    rounds: int
    plain_steps: int
    accepted_per_step: float
    acceptance: list[float]
    off_share: float
    periods: list[DraftPeriod]
    draft_seconds: float
    verify_seconds: float
    plain_seconds: float
    speedup: float | None


@dataclass(frozen=True, slots=True)
class GenerationStats:
    """Of one call, all sequences together. Time a stream's consumer takes is not counted.

    Args:
        seconds: The whole call.
        time_to_first_token: Seconds until the first token was known, if any.
        tokens_per_second: `output_tokens` over `seconds`, prompt included.
        decode_tokens_per_second: The same of the steps after each sequence's first token.
        python_seconds: Spent outside the backend's run calls.
        python_share: `python_seconds` over `seconds`.
        exit_counts: For a model with exits, how many tokens were taken at each.
        mean_depth: Decoder layers per token, on average.
        draft: For a model with a drafter that may draft, what came of it.
    """

    prompt_tokens: int
    output_tokens: int
    seconds: float
    time_to_first_token: float | None
    tokens_per_second: float
    decode_tokens_per_second: float
    python_seconds: float
    python_share: float
    exit_counts: list[int] | None = None
    mean_depth: float | None = None
    draft: DraftStatistics | None = None
