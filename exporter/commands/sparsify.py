"""`quatrain sparsify`: a dense checkpoint becomes one that runs a part of its channels."""

import argparse
from typing import TYPE_CHECKING

from quatrain.exporter.commands.checkpoint_flags import add_checkpoint_flags
from quatrain.exporter.commands.console import Console
from quatrain.exporter.commands.fit_flags import add_text_flags, add_work_flag
from quatrain.exporter.table import Table, format_bytes, format_facts

if TYPE_CHECKING:
    from quatrain.exporter.sparsification import SparsifyReport

__all__ = ["configure_parser", "run"]

# The parameters of `sparsify_checkpoint` that have a flag of the same name.
_PARAMETERS = (
    "method",
    "bank_size",
    "top_k",
    "rank",
    "gate_mode",
    "text",
    "tokens",
    "window",
    "weights",
    "work",
)


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `sparsify_checkpoint`."""
    add_checkpoint_flags(parser, given="dense checkpoint")
    parser.add_argument(
        "--method",
        choices=("predictor", "dense-topk"),
        default="predictor",
        help="fit predictors that choose channels before they are computed (the default), or keep"
        " the largest activations after the fact, which needs no fitting and skips less work",
    )
    _add_bank_flags(parser)
    _add_fit_flags(parser.add_argument_group("fitting predictors"))


def _add_bank_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bank-size",
        type=int,
        default=64,
        metavar="N",
        help="neighbouring channels that compete (default: 64)",
    )
    parser.add_argument(
        "--top-k",
        type=int,
        default=16,
        metavar="N",
        help="channels of a bank that run (default: 16)",
    )
    parser.add_argument(
        "--gate-mode",
        choices=("sigmoid", "silu", "hard"),
        help="what takes the gate's place: sigmoid of the predictor's logits (the default), the"
        " backbone's own silu (always so with dense-topk), or 1 (hard)",
    )


def _add_fit_flags(group: argparse._ArgumentGroup) -> None:
    add_text_flags(group, required=False, tokens=32768, window=512)
    group.add_argument(
        "--rank",
        type=int,
        metavar="N",
        help="width of a predictor (default: one for 32 channels, as the paper's 448 for 14336)",
    )
    add_work_flag(group, kept="the calibration here, to go on from or to fit another rank to")


def run(args: argparse.Namespace, console: Console) -> int:
    """Sparsify, and tell what the new checkpoint is and how well its predictors choose."""
    from quatrain.exporter.sparsification import sparsify_checkpoint

    report = sparsify_checkpoint(
        args.checkpoint,
        args.output,
        **{name: getattr(args, name) for name in _PARAMETERS},
        progress=console.make_progress(),
    )
    console.set_document(report)
    if report.layers:
        console.show_table(_make_table(report))
    console.show(_format_report(report))
    return 0


def _make_table(report: "SparsifyReport") -> Table:
    columns = ("layer", "explained", "gates", "activations", "of at best", "energy", "of at best")
    values = [
        (
            quality.explained_variance,
            quality.gate_share,
            quality.activation_share,
            quality.activation_ceiling,
            quality.energy_share,
            quality.energy_ceiling,
        )
        for quality in report.layers
    ]
    means = [sum(column) / len(values) for column in zip(*values, strict=True)]
    labels = [*(str(quality.layer) for quality in report.layers), "mean"]
    rows = [
        [label, *(f"{value:.1%}" for value in row)]
        for label, row in zip(labels, [*values, means], strict=True)
    ]
    chance = report.banks.top_k / report.banks.bank_size
    return Table(
        "what the predictors find on held-out text",
        columns,
        rows,
        frozenset(columns),
        [
            "explained: variance of the gate projection; gates, activations: how many of the"
            f" largest (by chance {chance:.1%});",
            "at best: with the gate projection itself; energy: of the activations that run, at best"
            " with the largest",
        ],
    )


def _format_report(report: "SparsifyReport") -> str:
    banks = report.banks
    num_banks = report.intermediate_size // banks.bank_size
    facts = {
        "channels": f"{num_banks * banks.top_k} of {report.intermediate_size} run: {banks.top_k} of"
        f" every {banks.bank_size}",
        "gate": banks.gate_mode,
    }
    if banks.predictor_rank is None:
        facts["chosen by"] = "the largest activations, after the fact"
    else:
        facts["chosen by"] = f"predictors of rank {banks.predictor_rank}, which take"
        facts["chosen by"] += f" {report.predictor_cost:.1%} of the dense network's products"
        facts["fitted to"] = f"{report.fitted_tokens:,} tokens, measured on"
        facts["fitted to"] += f" {report.held_out_tokens:,} others"
        facts["to be used"] = "after training: choosing by gates alone ruins a model that was not"
    placed = "linked" if report.weights == "link" else "copied"
    facts["weights"] = f"{format_bytes(report.new_bytes)} new; the others are {placed}"
    return format_facts(f"{report.checkpoint}: {report.family}", facts)
