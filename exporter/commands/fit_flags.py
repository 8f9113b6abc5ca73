"""The flags of every command that fits something to a text."""

import argparse

from quatrain.exporter.commands.path_flag import read_path

__all__ = ["add_text_flags", "add_work_flag"]


def add_text_flags(
    group: argparse._ArgumentGroup, *, required: bool, tokens: int, window: int
) -> None:
    """Declare the text, and how much of it the model sees, with these defaults.

    Where no text is required a window may be of no use; only one that was given is not None then.
    """
    group.add_argument(
        "--text",
        type=read_path,
        metavar="FILE",
        required=required,
        help="what to fit to: UTF-8 text, or token ids in a .npy file",
    )
    group.add_argument(
        "--tokens",
        type=int,
        metavar="N",
        help=f"tokens of it to use, the last tenth to measure on (default: {tokens}, or all)",
    )
    group.add_argument(
        "--window",
        type=int,
        default=window if required else None,
        metavar="N",
        help=f"tokens that the model sees together (default: {window})",
    )


def add_work_flag(group: argparse._ActionsContainer, *, kept: str) -> None:
    """Declare the folder that the work is kept in; `kept` says what of it, and what for."""
    group.add_argument(
        "--work",
        type=read_path,
        metavar="FOLDER",
        help=f"keep {kept} (default: the output's name with .partial, removed at the end)",
    )
