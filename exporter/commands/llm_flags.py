"""The flags of every command that runs a bundle: those of `LLM`."""

import argparse
from typing import TYPE_CHECKING

from quatrain.exporter.commands.path_flag import read_path

if TYPE_CHECKING:
    from quatrain.runtime import LLM

__all__ = [
    "add_backend_flags",
    "add_draft_flag",
    "add_llm_flags",
    "add_session_cache_flag",
    "open_llm",
    "read_word_or_number",
]


def add_llm_flags(parser: argparse.ArgumentParser) -> None:
    """Declare BUNDLE and how to run it."""
    parser.add_argument(
        "bundle", metavar="BUNDLE", type=read_path, help="folder `quatrain export` wrote"
    )
    group = add_backend_flags(parser)
    group.add_argument(
        "--max-deferred",
        type=int,
        metavar="N",
        help="rows an early exit may leave for later (default: the bundle's limit)",
    )
    add_draft_flag(group)
    group.add_argument(
        "--exact",
        action="store_true",
        help="on a CPU, multiply with quantized weights in float32, which is slow",
    )
    add_session_cache_flag(group)
    group.add_argument(
        "--self-test",
        action="store_true",
        help="first generate the tokens that the bundle records, and refuse it if others come out",
    )


def add_backend_flags(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Declare what runs the graphs."""
    group = parser.add_argument_group("running")
    group.add_argument(
        "--backend",
        choices=("auto", "onnxruntime", "tensorrt"),
        default="auto",
        help="auto (the default) takes engines that fit the GPU here, else ONNX Runtime",
    )
    group.add_argument(
        "--threads", type=int, metavar="N", help="CPU threads (default: ONNX Runtime's choice)"
    )
    return group


def add_draft_flag(group: argparse._ArgumentGroup) -> None:
    """Declare how much is drafted."""
    group.add_argument(
        "--draft",
        type=lambda text: read_word_or_number(text, "auto"),
        default="auto",
        metavar="auto|N",
        help="tokens that a drafter guesses before each verification: as many as pay (auto, the"
        " default; none where tokens are drawn with a seed), always N, or none (0)",
    )


def add_session_cache_flag(group: argparse._ArgumentGroup) -> None:
    """Declare where optimized sessions are kept."""
    group.add_argument(
        "--session-cache",
        type=read_path,
        metavar="DIR",
        help="on a CPU, keep what ONNX Runtime makes of the graphs here, and open them from it"
        " (default: nowhere)",
    )


def open_llm(args: argparse.Namespace) -> "LLM":
    """Open the bundle as asked."""
    from quatrain.runtime import LLM

    return LLM(
        args.bundle,
        backend=args.backend,
        threads=args.threads,
        max_deferred=args.max_deferred,
        draft=args.draft,
        exact=args.exact,
        session_cache=args.session_cache,
        self_test=args.self_test,
    )


def read_word_or_number(text: str, *words: str) -> str | int:
    """One of the words, or a number."""
    if text in words:
        return text
    try:
        return int(text)
    except ValueError:
        known = ", ".join(words)
        raise argparse.ArgumentTypeError(f"{text!r} is not {known} or a number") from None
