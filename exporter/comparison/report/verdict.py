"""The outcome of a comparison in a few words, and as a JSON document."""

import math

import msgspec

from quatrain.exporter.comparison.result import Check, Comparison, Divergence

__all__ = [
    "describe_divergence",
    "describe_verdict",
    "format_number",
    "format_tolerance",
    "make_document",
]


def describe_verdict(comparison: Comparison) -> str:
    """One or two sentences: what was held to the checkpoint, and what was not as it should be."""
    compared = [runner.name for runner in comparison.runners if runner.status == "compared"]
    if not compared:
        return "Nothing was compared: every runner was skipped."
    failures = comparison.failures
    total = len(comparison.checks)
    if not failures:
        return f"All {total} checks of {', '.join(compared)} are within their tolerances."
    verdict = f"{len(failures)} of {total} checks failed ({_list_names(failures)})."
    if comparison.divergences:
        verdict += f" First divergence: {describe_divergence(comparison.divergences[0])}."
    return verdict


def describe_divergence(divergence: Divergence) -> str:
    """Where a runner first leaves the reference, and how far."""
    where = f"{divergence.tensor} of {divergence.runner}"
    if divergence.position is not None:
        where += f" at position {divergence.position}"
    if divergence.kind == "not finite":
        return f"{where} is NaN or infinite"
    return (
        f"{where}, {format_number(divergence.error)} of the largest magnitude"
        f" where {format_number(divergence.tolerance)} is allowed"
    )


def make_document(comparison: Comparison) -> dict[str, object]:
    """The comparison as JSON has it, its verdict first; numbers that JSON does not have (NaN,
    infinity) are words."""
    fields = msgspec.to_builtins(comparison, str_keys=True)
    return {"passed": comparison.passed, **{name: _spell(fields[name]) for name in fields}}


def format_number(value: float | int | str) -> str:
    """A measured value, in three digits if it is not whole."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def format_tolerance(check: Check) -> str:
    """What was allowed, and in which direction."""
    if isinstance(check.tolerance, str):
        return check.tolerance
    bound = "at least" if check.at_least else "at most"
    return f"{bound} {format_number(check.tolerance)}"


def _list_names(checks: list[Check]) -> str:
    names = list(dict.fromkeys(check.name for check in checks))
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")


def _spell(data: object) -> object:
    if isinstance(data, dict):
        return {key: _spell(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_spell(value) for value in data]
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data
