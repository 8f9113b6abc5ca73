"""`quatrain build`: TensorRT engines for a bundle."""

import argparse

from quatrain.exporter.commands.console import Console
from quatrain.exporter.commands.engine_table import make_engine_table
from quatrain.exporter.commands.path_flag import read_path
from quatrain.exporter.commands.plugins_flag import add_plugins_flag
from quatrain.exporter.commands.stage_table import make_stage_table
from quatrain.exporter.commands.target_flag import add_target_flag

__all__ = ["configure_parser", "run"]


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `build_engines`."""
    parser.add_argument(
        "bundle", metavar="BUNDLE", type=read_path, help="folder `quatrain export` wrote"
    )
    add_target_flag(parser, required=True)
    parser.add_argument(
        "--flavour",
        choices=("tensorrt-rtx", "tensorrt"),
        help="the TensorRT to build with (default: TensorRT-RTX, which needs no GPU; classic"
        " TensorRT on the very GPU where the vendor supports nothing else)",
    )
    add_plugins_flag(parser)
    parser.add_argument(
        "--log-file", metavar="FILE", type=read_path, help="append everything TensorRT says"
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Build the engines into the bundle."""
    from quatrain.exporter.engine.engines import build_engines

    progress = console.make_progress()
    engines = build_engines(
        args.bundle,
        args.targets,
        flavour=args.flavour,
        plugins=args.plugins or ("auto",),
        log_file=args.log_file,
        progress=progress,
    )
    console.set_document({"engines": engines, "stages": progress.stages})
    console.show_table(make_stage_table(progress.stages))
    console.show_table(make_engine_table(engines))
    return 0
