"""The --target flag of every command that builds engines."""

import argparse

__all__ = ["add_target_flag"]


def add_target_flag(
    parser: argparse.ArgumentParser, *, required: bool, verb: str = "build engines for"
) -> None:
    """Declare --target: one or several names, and again as often as one likes."""
    parser.add_argument(
        "--target",
        dest="targets",
        action="extend",
        nargs="+",
        default=None if required else [],
        required=required,
        metavar="TARGET",
        help=f"{verb} these GPUs: a100, a6000, rtx3090",
    )
