"""The flags of every command that makes something of a checkpoint."""

import argparse

from quatrain.exporter.commands.path_flag import read_path

__all__ = ["add_checkpoint_flags"]


def add_checkpoint_flags(
    parser: argparse.ArgumentParser,
    *,
    given: str = "checkpoint folder",
    made: str = "checkpoint",
    metavar: str = "FOLDER",
) -> None:
    """Declare CHECKPOINT, the output, and how the weight files get there."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=read_path, help=given)
    parser.add_argument(
        "-o", "--output", metavar=metavar, type=read_path, required=True, help=f"{made} to write"
    )
    parser.add_argument(
        "--weights",
        choices=("link", "copy"),
        help="hard-link or copy the weight files (default: link where the file system allows)",
    )
