"""`quatrain expand`: a checkpoint becomes one with more streams."""

import argparse
from typing import TYPE_CHECKING

from quatrain.exporter.commands.checkpoint_flags import add_checkpoint_flags
from quatrain.exporter.commands.console import Console
from quatrain.exporter.table import format_bytes, format_facts

if TYPE_CHECKING:
    from quatrain.exporter.expansion import ExpansionReport

__all__ = ["configure_parser", "run"]


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `expand_checkpoint`."""
    add_checkpoint_flags(parser)
    parser.add_argument(
        "-n",
        "--num-streams",
        metavar="N",
        type=int,
        required=True,
        help="rows of a token in the new checkpoint; its tables are copies, table s of table"
        " s mod the old number",
    )
    parser.add_argument(
        "--intra-stream",
        metavar="LAYERS",
        help="layers whose rows attend within their own stream: none, all, or layers counted"
        " from 0 such as 0-3,5,7-9 (default: as in the checkpoint; dense: none)",
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Expand, and tell what the new checkpoint is and costs."""
    from quatrain.exporter.expansion import expand_checkpoint

    report = expand_checkpoint(
        args.checkpoint,
        args.output,
        num_streams=args.num_streams,
        intra_stream=args.intra_stream,
        weights=args.weights,
        progress=console.make_progress(),
    )
    console.set_document(report)
    console.show(_format_report(report))
    return 0


def _format_report(report: "ExpansionReport") -> str:
    before, after = report.before, report.after
    factor = after.kv_bytes_per_token / before.kv_bytes_per_token
    placed = "linked" if report.weights == "link" else "copied"
    return format_facts(
        f"{report.checkpoint}: {before.num_streams} -> {after.num_streams} streams",
        {
            "layers": _describe_layers(report.intra_stream),
            "parameters": f"{before.num_parameters:,} -> {after.num_parameters:,}",
            "new tables": f"{len(report.new_tables)}, {format_bytes(report.new_bytes)} written;"
            f" the other weights are {placed}",
            "cache": f"{format_bytes(before.kv_bytes_per_token)} ->"
            f" {format_bytes(after.kv_bytes_per_token)} a token in 16 bits (x {factor:.3g})",
        },
    )


def _describe_layers(intra_stream: list[bool]) -> str:
    from quatrain.exporter.expansion.layer_list import format_layers

    intra = tuple(intra_stream)
    cross = tuple(not is_intra for is_intra in intra)
    return f"intra-stream {format_layers(intra)}, cross-stream {format_layers(cross)}"
