"""`quatrain compare`: is a bundle what its checkpoint says?"""

import argparse
from pathlib import Path

from quatrain.exporter.commands.console import Console
from quatrain.exporter.commands.path_flag import read_path

__all__ = ["configure_parser", "run"]


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the flags: those of `compare_bundle`, and where to write."""
    parser.add_argument(
        "bundle", metavar="BUNDLE", type=read_path, help="folder `quatrain export` wrote"
    )
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        type=read_path,
        help="the checkpoint it was exported from; a quantized bundle is held to its weights"
        " rounded alike, and on a CPU run with exact products (what rounding costs: `quatrain"
        " perplexity` of this bundle and of one exported without --quantize)",
    )
    parser.add_argument(
        "--runner",
        dest="runners",
        action="extend",
        nargs="+",
        metavar="RUNNER",
        help="what to hold to the checkpoint: fp32 (the CPU graphs, the default), deployment (those"
        " of engines, on the CPU), cuda, tensorrt; what cannot run here is skipped by name",
    )
    _add_input_flags(parser.add_argument_group("what to run"))
    output = parser.add_argument_group("output")
    output.add_argument(
        "--html", type=read_path, metavar="FILE", help="also write a page with tables and plots"
    )
    output.add_argument(
        "--save-polygraphy",
        type=read_path,
        metavar="FOLDER",
        help="also write inputs and outputs in Polygraphy's format",
    )


def _add_input_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--text",
        type=read_path,
        metavar="FILE",
        help="UTF-8 text that tokens are taken from (default: a passage that comes along)",
    )
    for flag, default, text in (
        ("--max-tokens", 64, "tokens of the longest sequence"),
        ("--decode-steps", 16, "of them fed one by one, through the cache"),
    ):
        group.add_argument(
            flag, type=int, default=default, metavar="N", help=f"{text} (default: {default})"
        )
    group.add_argument(
        "--layers",
        action="store_true",
        help="compare every layer, too, as is done where something fails",
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Compare, and show what came out; 1 where the bundle is not its checkpoint."""
    from quatrain.exporter.comparison import compare_bundle
    from quatrain.exporter.comparison.report import (
        describe_verdict,
        list_tables,
        make_document,
        write_html,
    )
    from quatrain.exporter.output_file import check_output_file

    if args.html is not None:
        check_output_file(args.html, f"write a report to {args.html} (--html)")
        _keep_apart(args.html, (args.bundle, args.checkpoint))
    comparison = compare_bundle(
        args.bundle,
        args.checkpoint,
        text=args.text,
        runners=args.runners or ("fp32",),
        max_tokens=args.max_tokens,
        decode_steps=args.decode_steps,
        layers=args.layers,
        save_polygraphy=args.save_polygraphy,
        progress=console.make_progress(),
    )
    console.set_document(make_document(comparison))
    for table in list_tables(comparison):
        console.show_table(table)
    console.show(f"reference: {comparison.reference}")
    outcome = "passed" if comparison.passed else "FAILED"
    console.show(f"{outcome}: {describe_verdict(comparison)}")
    if args.html is not None:
        write_html(args.html, comparison)
        console.say(f"written: {args.html}")
    return 0 if comparison.passed else 1


def _keep_apart(report: Path, folders: tuple[Path, ...]) -> None:
    """A report must not take the place of what it is about."""
    from quatrain.runtime.errors import RequestError

    for folder in folders:
        if report.resolve().is_relative_to(folder.resolve()):
            raise RequestError(
                f"write a report to {report} (--html)",
                f"it would be among the files of {folder}",
                "name a file elsewhere",
            )
