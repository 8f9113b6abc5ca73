"""What a benchmark found out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

__all__ = ["BenchReport", "BenchRun", "Spread", "find_percentile", "measure_spread"]


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and most over the repeats."""

    median: float
    min: float
    max: float


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One bundle in one case. The plain numbers are medians over the repeats.

    Args:
        quantized: `int8` or `int4` where projections are codes.
        tokens_per_second: Of the steps after the first token, all sequences together.
        time_to_first_token_ms: From the prompt's ids to the first token.
        token_ms_p50: Half of the steps took no longer (all repeats together); `token_ms_p95`: 95
            of 100. A step gives each sequence its next token, with exits whatever is caught up on
            meanwhile included; with drafts it is a whole round, guesses, verification and all the
            tokens that it gives.
        load_seconds: Opening the bundle, in a fresh process.
        peak_rss_bytes: The most memory that process ever had.
        bytes_per_token: Weights and caches that the calls behind the first token read for one token
            of one sequence, counted from the calls that were made; None where engines run, and
            without the package onnx, which reads graphs.
        python_share: Of the time, what was spent outside the backend's calls.
        routing: How a model with exits chose them: `sample`, drawn; None without exits.
        exit_shares: Of the tokens, by exit; `mean_depth`: layers run, on average.
        draft: Guesses of a round, `auto` for as many as pay; None without a drafter.
        accepted_per_step: Tokens that one step gave a sequence, rounds and plain ones; None without
            a drafter, or where it was told to draft none.
        feed_forward_share: Bytes of feed-forward weights one row needs over those of a dense one;
            None of a dense one, and where graphs are not read.
        ratios: Of `tokens_per_second` and `time_to_first_token_ms`, each over the baseline's in
            the same round; None for the baseline.
    """

    bundle: str
    family: str
    backend: str
    quantized: str | None
    prompt_tokens: int
    new_tokens: int
    batch: int
    tokens_per_second: float
    time_to_first_token_ms: float
    token_ms_p50: float
    token_ms_p95: float
    load_seconds: float
    peak_rss_bytes: int
    bytes_per_token: int | None
    python_share: float
    routing: Literal["sample"] | None
    exit_shares: list[float] | None
    mean_depth: float | None
    draft: Literal["auto"] | int | None
    accepted_per_step: float | None
    feed_forward_share: float | None
    spreads: dict[str, Spread]
    ratios: dict[str, Spread] | None


@dataclass(frozen=True, slots=True)
class BenchReport:
    """All runs, case by case in the order of the bundles, and where they were made.

    `same_tokens` says of each case how many leading tokens of the first sequence all bundles agree
    on: bundles of the same model should agree on all. `session_cache` is the folder that sessions
    on a CPU were to be kept in, None for nowhere: an opening from it takes less time and memory
    than one without it, and than the one that fills it.
    """

    runs: list[BenchRun]
    baseline: str | None
    same_tokens: list[int]
    repeats: int
    threads: int | None
    cpus: int
    load_average: float | None
    versions: dict[str, str]
    session_cache: str | None
    decoding: Literal["greedy"] = "greedy"


def measure_spread(values: Sequence[float]) -> Spread:
    """Of at least one number."""
    return Spread(median(values), min(values), max(values))


def find_percentile(values: Sequence[float], share: float) -> float:
    """The least of the values that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
