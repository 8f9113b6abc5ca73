"""The --plugins flag of every command that builds engines."""

import argparse

__all__ = ["add_plugins_flag"]


def add_plugins_flag(parser: argparse.ArgumentParser) -> None:
    """Declare --plugins: a mode, and others for single operators."""
    parser.add_argument(
        "--plugins",
        nargs="+",
        metavar="MODE",
        help="build our operators as plugins with kernels of their own: auto (the default: where"
        " there is a kernel for it), on (or fail) or off (the function bodies in the graph); for"
        " one of StreamFactorizedAttention, BankTopKFeedForward, ExitRouter: OPERATOR=MODE",
    )
