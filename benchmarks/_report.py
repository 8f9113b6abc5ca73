"""Samples of a decode benchmark and their summary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks._worker import Reply

__all__ = ["Sample", "sample", "summarize", "to_text"]

Summary = dict[str, Any]

_ROWS = {
    "decode_tokens_per_s": "decode, tokens/s",
    "first_token_ms": "first token, ms",
    "cores_used": "cores used",
    "overhead_ms_per_step": "outside the session, ms/step",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One engine's numbers in one round."""

    decode_tokens_per_s: float
    first_token_ms: float
    cores_used: float
    overhead_ms_per_step: float | None


def sample(first: Reply, full: Reply) -> Sample:
    """Derive the numbers from a one-token call and a full call of the same prompt.

    Their difference is the decode steps alone, whatever the engine; so is the difference of
    the times spent inside the model sessions, where the engine's worker knows them.
    """
    steps = len(full.generation.token_ids) - len(first.generation.token_ids)
    decode_s = full.wall_s - first.wall_s
    inside_first, inside_full = first.generation.session_s, full.generation.session_s
    overhead_ms = None
    if inside_first is not None and inside_full is not None:
        overhead_ms = 1e3 * (decode_s - (inside_full - inside_first)) / steps
    cores_used = (full.cpu_s - first.cpu_s) / decode_s
    return Sample(steps / decode_s, 1e3 * first.wall_s, cores_used, overhead_ms)


def summarize(samples: Mapping[str, Sequence[Sample]]) -> Summary:
    """Return median, min and max per engine, and the ratios of the first engine to the second.

    A ratio is taken within a round, where the two engines ran next to each other; its median,
    min and max are over the rounds.
    """
    engines = {
        name: {row: _spread([getattr(item, row) for item in items]) for row in _ROWS}
        for name, items in samples.items()
    }
    summary: Summary = {"engines": engines}
    if len(samples) == 2:
        left, right = samples.values()
        pairs = list(zip(left, right, strict=True))
        summary["ratios"] = {
            row: _spread([getattr(a, row) / getattr(b, row) for a, b in pairs])
            for row in ("decode_tokens_per_s", "first_token_ms")
        }
    return summary


def to_text(summary: Summary) -> str:
    """Lay a summary out as plain text."""
    lines = [f"{'':<10} {'':<30} {'median':>9} {'min':>9} {'max':>9}"]
    for engine, rows in summary["engines"].items():
        lines += [_line(engine, _ROWS[row], spread) for row, spread in rows.items() if spread]
    for row, spread in summary.get("ratios", {}).items():
        lines.append(_line("ratio", _ROWS[row].partition(",")[0], spread))
    return "\n".join(lines)


def _line(name: str, what: str, spread: Mapping[str, float]) -> str:
    numbers = " ".join(f"{spread[key]:>9.3f}" for key in ("median", "min", "max"))
    return f"{name:<10} {what:<30} {numbers}"


def _spread(values: Sequence[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {"median": median(known), "min": min(known), "max": max(known)}
