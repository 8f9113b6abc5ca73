"""`quatrain perplexity`: how well a bundle predicts a text."""

import argparse
import time
from collections.abc import Callable

from quatrain.exporter.commands.console import Console
from quatrain.exporter.commands.llm_flags import add_llm_flags, open_llm
from quatrain.exporter.commands.path_flag import read_path

__all__ = ["configure_parser", "run"]

_PROGRESS_SECONDS = 2.0


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the flags: `LLM`'s and those of `runtime.perplexity`."""
    add_llm_flags(parser)
    parser.add_argument(
        "--text", type=read_path, required=True, metavar="FILE", help="the text to score, in UTF-8"
    )
    parser.add_argument(
        "--window",
        type=int,
        metavar="N",
        help="tokens scored together, seeing nothing before them (default: 512, or the bundle's"
        " limit where that is less)",
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Score the text."""
    from quatrain.exporter.text_file import read_text
    from quatrain.runtime import perplexity

    text = read_text(args.text)
    with open_llm(args) as llm:
        report = _make_reporter(console.say)
        result = perplexity(llm, text, window=args.window, progress=report)
    console.set_document(result)
    bits = "" if result.bits_per_byte is None else f", {result.bits_per_byte:.4f} bits per byte"
    console.show(
        f"perplexity {result.perplexity:.3f}{bits}"
        f" ({result.tokens} tokens in {result.windows} windows of {result.window})"
    )
    return 0


def _make_reporter(say: Callable[[str], None]) -> Callable[[int, int], None]:
    """Tells of the windows done, every other second."""
    last = start = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _PROGRESS_SECONDS:
            last = now
            left = (now - start) / done * (total - done)
            say(f"window {done} of {total}, about {left:.0f} s left")

    return report
