"""Samples of a decode benchmark and their summary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks._worker import Reply

__all__ = ["Sample", "count_same_tokens", "sample", "show_spread", "summarize", "to_text"]

Spread = dict[str, float]
Summary = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """One engine's numbers in one round."""

    decode_tokens_per_s: float
    first_token_ms: float
    cores_used: float
    outside_ms: float | None


def sample(reply: Reply) -> Sample:
    """Derive the numbers from one call.

    Decoding is what came after the first token. What an engine spends outside the model's sessions
    is of the whole call, the prompt included.
    """
    tokens, outside_s = len(reply.generation.token_ids), reply.generation.outside_s
    return Sample(
        decode_tokens_per_s=(tokens - 1) / reply.decode_s,
        first_token_ms=1e3 * reply.first_token_s,
        cores_used=reply.decode_cpu_s / reply.decode_s,
        outside_ms=None if outside_s is None else 1e3 * outside_s,
    )


def summarize(samples: Mapping[str, Sequence[Sample]]) -> Summary:
    """Return each engine's numbers, and the ratios of the first engine's to each other one's.

    A ratio is taken within a round, where the engines ran next to each other. Every number is the
    median, minimum and maximum over the rounds.
    """
    first = next(iter(samples.values()))
    engines = {}
    for name, items in samples.items():
        engines[name] = {row: _spread_of(items, row) for row in Sample.__dataclass_fields__}
    ratios = {}
    for name, items in samples.items():
        pairs = list(zip(first, items, strict=True))
        ratios[name] = {
            row: _spread([getattr(a, row) / getattr(b, row) for a, b in pairs])
            for row in ("decode_tokens_per_s", "first_token_ms")
        }
    return {"engines": engines, "ratios": ratios}


def count_same_tokens(tokens: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return how many leading tokens each engine has in common with the first."""
    first = next(iter(tokens.values()))
    return {name: _count_same(first, ids) for name, ids in tokens.items()}


def _count_same(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def to_text(summary: Summary, same_tokens: Mapping[str, int]) -> str:
    """Lay a summary out as plain text: a line for each engine."""
    first = next(iter(summary["engines"]))
    header = f"{'':<13}{'tokens/s':>21}  {first + ' is':>21}  {'first token, ms':>24}"
    lines = [f"{header}  {first + ' takes':>21}  {'cores':>5}  {'same':>5}"]
    for name, rows in summary["engines"].items():
        ratios = summary["ratios"][name]
        speed, first_token = rows["decode_tokens_per_s"], rows["first_token_ms"]
        columns = [
            f"{name:<13}{_show(speed, '.1f'):>21}",
            f"{_show(ratios['decode_tokens_per_s'], '.2f', 'x'):>21}",
            f"{_show(first_token, '.0f'):>24}",
            f"{_show(ratios['first_token_ms'], '.2f', 'x'):>21}",
            f"{rows['cores_used']['median']:>5.2f}  {same_tokens[name]:>5}",
        ]
        lines.append("  ".join(columns))
    outside = summary["engines"][first]["outside_ms"]
    if outside is not None:
        lines.append(f"{first}, outside the sessions: {_show(outside, '.0f')} ms a call")
    return "\n".join(lines)


def _show(spread: Spread, digits: str, unit: str = "") -> str:
    middle, low, high = (format(spread[key], digits) for key in ("median", "min", "max"))
    return f"{middle}{unit} ({low} to {high})"


def show_spread(values: Sequence[float]) -> str:
    """Median and range of some ratios, say, in two digits."""
    return _show(_spread(values), ".2f")


def _spread_of(items: Sequence[Sample], row: str) -> Spread | None:
    known = [value for value in (getattr(item, row) for item in items) if value is not None]
    return _spread(known) if known else None


def _spread(values: Sequence[float]) -> Spread:
    return {"median": median(values), "min": min(values), "max": max(values)}
