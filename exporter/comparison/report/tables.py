"""A comparison as tables, for the terminal and for the page."""

from quatrain.exporter.comparison.report.verdict import format_number, format_tolerance
from quatrain.exporter.comparison.result import Comparison
from quatrain.exporter.table import Table

__all__ = [
    "list_tables",
    "make_case_table",
    "make_check_table",
    "make_divergence_table",
    "make_flip_table",
    "make_layer_table",
    "make_runner_table",
]

_MAX_FLIPS = 20


def list_tables(comparison: Comparison) -> list[Table]:
    """What there is to show in a terminal: all that has rows, what matters most comes last."""
    tables = (
        make_layer_table(comparison),
        make_flip_table(comparison),
        make_case_table(comparison),
        make_runner_table(comparison),
        make_check_table(comparison),
        make_divergence_table(comparison),
    )
    return [table for table in tables if table.rows]


def make_check_table(comparison: Comparison) -> Table:
    """Every judgement, in the order in which they were made."""
    rows = [
        (
            check.name,
            check.runner,
            "ok" if check.passed else "FAILED",
            format_number(check.value),
            format_tolerance(check),
            check.detail,
        )
        for check in comparison.checks
    ]
    columns = ("check", "runner", "outcome", "value", "allowed", "detail")
    failed = [number for number, check in enumerate(comparison.checks) if not check.passed]
    return Table("Checks", columns, rows, numeric=frozenset({"value"}), alarming=frozenset(failed))


def make_runner_table(comparison: Comparison) -> Table:
    """What was held to the reference, and what was skipped and why."""
    rows = [
        (
            runner.name,
            runner.status,
            runner.dtype,
            f"{runner.seconds:.1f}" if runner.status == "compared" else "",
            runner.reason,
        )
        for runner in comparison.runners
    ]
    columns = ("runner", "outcome", "computes in", "seconds", "why")
    return Table("Runners", columns, rows, numeric=frozenset({"seconds"}))


def make_divergence_table(comparison: Comparison) -> Table:
    """The first tensor of each runner that is not the reference's."""
    rows = [
        (
            found.runner,
            found.tensor,
            "" if found.layer is None else str(found.layer),
            found.case,
            "" if found.position is None else str(found.position),
            found.kind,
            format_number(found.error),
            format_number(found.tolerance),
        )
        for found in comparison.divergences
    ]
    columns = ("runner", "tensor", "layer", "case", "position", "kind", "error", "allowed")
    return Table(
        "First divergence, in the order of computation",
        columns,
        rows,
        numeric=frozenset({"layer", "position", "error", "allowed"}),
        notes=["error and allowed: relative to the reference's largest magnitude"],
        alarming=frozenset(range(len(rows))),
    )


def make_layer_table(comparison: Comparison) -> Table:
    """How the error grows: a row for each tensor, in the order of computation."""
    rows = [
        (
            error.runner,
            error.tensor,
            format_number(error.max_abs_error),
            format_number(error.reference_max),
            format_number(error.relative),
        )
        for error in comparison.layer_errors
    ]
    columns = ("runner", "tensor", "largest error", "largest value", "relative")
    return Table("Error by tensor", columns, rows, numeric=frozenset(columns[2:]))


def make_flip_table(comparison: Comparison) -> Table:
    """Positions whose most likely next token is another one, the clearest first."""
    flips = sorted(comparison.plots.flips, key=lambda flip: -flip.margin)
    rows = [
        (
            flip.runner,
            flip.case,
            str(flip.sequence),
            str(flip.position),
            str(flip.reference_token),
            str(flip.runner_token),
            format_number(flip.margin),
        )
        for flip in flips[:_MAX_FLIPS]
    ]
    notes = ["margin: by how much the reference prefers its own token"]
    if len(flips) > _MAX_FLIPS:
        notes.append(f"{len(flips) - _MAX_FLIPS} more are in the JSON document")
    columns = ("runner", "case", "sequence", "position", "reference", "here", "margin")
    numeric = frozenset(columns[2:])
    return Table("Other most likely tokens", columns, rows, numeric=numeric, notes=notes)


def make_case_table(comparison: Comparison) -> Table:
    """The inputs."""
    rows = [
        (
            case.name,
            ", ".join(map(str, case.lengths)),
            ", ".join(map(str, case.prefill)),
            str(case.decode_steps),
            case.purpose,
        )
        for case in comparison.cases
    ]
    columns = ("case", "tokens", "of them prefill", "decode steps", "purpose")
    return Table("Cases", columns, rows, numeric=frozenset({"decode steps"}))
