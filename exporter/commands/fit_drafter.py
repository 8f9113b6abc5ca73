"""`quatrain fit-drafter`: a dense checkpoint gets low-level dynamics that draft for it."""

import argparse
from typing import TYPE_CHECKING

from quatrain.exporter.commands.checkpoint_flags import add_checkpoint_flags
from quatrain.exporter.commands.console import Console
from quatrain.exporter.commands.fit_flags import add_text_flags, add_work_flag
from quatrain.exporter.table import Table, format_bytes, format_facts

if TYPE_CHECKING:
    from quatrain.exporter.drafting import DrafterReport

__all__ = ["configure_parser", "run"]

# The parameters of `fit_drafter` that have a flag of the same name.
_PARAMETERS = (
    "text",
    "tokens",
    "window",
    "continue_tokens",
    "continue_temperature",
    "inner",
    "steps",
    "batch",
    "horizon",
    "learning_rate",
    "seed",
    "weights",
    "work",
)


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `fit_drafter`."""
    add_checkpoint_flags(parser, given="dense checkpoint")
    kept = "the states and the training here, to go on from or train otherwise on the same states"
    add_work_flag(parser, kept=kept)
    group = parser.add_argument_group("what to fit to")
    add_text_flags(group, required=True, tokens=131072, window=256)
    _add_continuation_flags(group)
    _add_training_flags(parser.add_argument_group("training"))


def _add_continuation_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--continue-tokens",
        type=int,
        default=0,
        metavar="N",
        help="of each window, let the model write the last N itself, behind the text's: drafts are"
        " made of such text, and best fitted to it (default: 0)",
    )
    group.add_argument(
        "--continue-temperature",
        type=float,
        metavar="T",
        help="what it draws them at (default: 0, the likeliest)",
    )


def _add_training_flags(group: argparse._ArgumentGroup) -> None:
    numbers = {
        "steps": (1000, "changes of the weights"),
        "batch": (512, "roll-outs that each of them learns from"),
        "horizon": (2, "steps of a roll-out"),
        "seed": (0, "of the first weights and of the order of the text"),
    }
    group.add_argument(
        "--inner",
        type=int,
        metavar="N",
        help="width of the dynamics (default: 4 times that of the states, as in the paper)",
    )
    for name, (default, meaning) in numbers.items():
        group.add_argument(
            f"--{name}",
            type=int,
            default=default,
            metavar="N",
            help=f"{meaning} (default: {default})",
        )
    group.add_argument(
        "--learning-rate",
        type=float,
        default=1e-3,
        metavar="RATE",
        help="the highest; it rises at first and falls to 0 at the end (default: 0.001)",
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Fit, and tell what the new checkpoint is and how well its drafter guesses."""
    from quatrain.exporter.drafting import fit_drafter

    report = fit_drafter(
        args.checkpoint,
        args.output,
        **{name: getattr(args, name) for name in _PARAMETERS},
        progress=console.make_progress(),
    )
    console.set_document(report)
    console.show_table(_make_table(report))
    console.show(_format_report(report))
    return 0


def _make_table(report: "DrafterReport") -> Table:
    quality = report.quality
    columns = ("draft", "accepted", "so far")
    rows, so_far = [], 1.0
    for number, share in enumerate(quality.draft_shares, 1):
        so_far *= share
        rows.append([str(number), f"{share:.1%}", f"{so_far:.1%}"])
    place, fed = "on held-out text", "the text's tokens"
    if report.continuation is not None:
        place, fed = "on what the model writes behind held-out text", "the tokens it wrote"
    return Table(
        f"drafts {place}",
        columns,
        rows,
        frozenset(columns),
        [
            "accepted: of the drafts whose predecessors all were, those whose token is the one that"
            " the model itself",
            f"finds most likely there; {quality.num_positions} positions, fed {fed}",
        ],
    )


def _format_report(report: "DrafterReport") -> str:
    quality, training = report.quality, report.training
    placed = "linked" if report.weights == "link" else "copied"
    return format_facts(
        f"{report.checkpoint}: {report.family}",
        {
            "drafter": f"{report.drafter.kind}, inner width {report.drafter.inner_size},"
            f" {report.new_parameters:,} parameters",
            "fitted to": _describe_text(report),
            "training": f"{training.steps} steps of {training.batch} roll-outs of"
            f" {training.horizon}, loss {report.loss:.4f} at the end",
            "error": f"{quality.relative_error:.3f} of the next state;"
            f" {quality.unchanged_error:.3f} if nothing changed",
            "tokens": f"{quality.tokens_per_step:.2f} a step with"
            f" {len(quality.draft_shares)} drafts on text like this, 1 without; generate --stats"
            " tells it of any other",
            "weights": f"{format_bytes(report.new_bytes)} new; the others are {placed}",
        },
    )


def _describe_text(report: "DrafterReport") -> str:
    own = report.continuation
    written = ""
    if own is not None:
        how = "likeliest" if own.temperature == 0 else f"drawn at temperature {own.temperature:g}"
        written = f", of each window the last {own.tokens} the model's own ({how})"
    return (
        f"{report.fitted_tokens:,} tokens{written}, measured on {report.held_out_tokens:,} others"
    )
