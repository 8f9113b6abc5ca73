"""`quatrain`: finds the command asked for, runs it, and turns its outcome into an exit status."""

import argparse
import errno
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from quatrain.exporter.command_parser import CommandParser

if TYPE_CHECKING:
    from types import FrameType

    from quatrain.exporter.commands.console import Console

__all__ = ["COMMANDS", "main", "make_parser"]

# A command's module is imported when it is the one asked for, and not before.
COMMANDS = {
    "export": "write a checkpoint as a bundle: ONNX graphs, weights, tokenizer, manifest",
    "expand": "give a checkpoint more streams (Hidden Decoding), for training to go on from",
    "sparsify": "let a dense checkpoint run only a part of its feed-forward channels",
    "fit-drafter": "fit dynamics to a dense checkpoint that draft for it (speculative decoding)",
    "plan": "tell which GPUs have room for a model, and how fast they could decode it",
    "build": "build TensorRT engines into a bundle",
    "generate": "generate text with a bundle",
    "inspect": "show what a checkpoint or a bundle holds",
    "perplexity": "score a text with a bundle",
    "compare": "hold a bundle to its checkpoint, layer by layer where they differ",
    "bench": "measure speed, memory and traffic of bundles, side by side",
    "doctor": "tell what can be built and run here, and test a bundle",
}

# Which extra of the package brings a module that a small installation lacks.
_EXTRAS = {
    "onnx": "export",
    "onnx_ir": "export",
    "onnxscript": "export",
    "ml_dtypes": "export",
    "yaml": "export",
    "polygraphy": "compare",
    "tensorrt_rtx": "rtx",
    "cuda": "gpu",
}
_ENVIRONMENT_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES}
_INTERRUPTED, _TERMINATED, _BROKEN_PIPE = (128 + n for n in (2, 15, 13))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; its parser exits 2 on wrong usage."""
    if argv is None:
        signal.signal(signal.SIGTERM, _exit_on_signal)
        _open_closed_streams()
    try:
        words = sys.argv[1:] if argv is None else list(argv)
        return _run_command(make_parser(words).parse_args(words))
    except KeyboardInterrupt:
        sys.stderr.write("quatrain: interrupted\n")
        return _INTERRUPTED
    except BrokenPipeError:
        # Whoever read stdout has gone; keep the interpreter from complaining when it closes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _BROKEN_PIPE


def make_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser for a command line, with the flags of the one command it names."""
    parser = CommandParser(
        words=words,
        commands=COMMANDS,
        prog="quatrain",
        description="Export language models that exit early, draft or skip work to ONNX and"
        " TensorRT, and run them.",
    )
    parser.add_argument("--version", action=_ShowVersions, help="show versions and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    asked = next((word for word in words if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        description = f"{summary[0].upper()}{summary[1:]}."
        command = commands.add_parser(name, help=summary, description=description, words=words)
        if name == asked:
            module = import_module(f"quatrain.exporter.commands.{name.replace('-', '_')}")
            module.configure_parser(command)
            command.add_argument(
                "--json", action="store_true", help="print the result as one JSON document"
            )
            command.set_defaults(run=module.run, command=name)
    return parser


def _run_command(args: argparse.Namespace) -> int:
    from quatrain.exporter.commands.console import Console
    from quatrain.runtime.errors import QuatrainError

    console = Console(is_json=args.json)
    try:
        with console.recording():
            status: int = args.run(args, console)
        return status
    except QuatrainError as error:
        return _fail(console, error.asked, error.found, error.fix)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        return _fail(
            console,
            f"run `quatrain {args.command}`",
            f"the Python package {error.name} is not installed",
            f"pip install 'quatrain[{extra}]'",
        )
    except OSError as error:
        if error.errno not in _ENVIRONMENT_ERRORS:
            raise
        fix = "make room, or check who may write and read there, and run the command again"
        return _fail(console, f"run `quatrain {args.command}`", str(error), fix)


def _fail(console: "Console", asked: str, found: str, fix: str) -> int:
    console.set_error(asked, found, fix)
    if console.is_json:
        with suppress(OSError):  # stdout may be what failed
            console.write_document()
    return 1


def _open_closed_streams() -> None:
    """Give stdout or stderr, if started closed (`2>&-`), its descriptor back: to nowhere."""
    for number in (1, 2):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def _exit_on_signal(signum: int, frame: "FrameType | None") -> NoReturn:
    """Leave as Ctrl-C does, through every `finally`, so that nothing stays half-written."""
    sys.exit(_TERMINATED)


class _ShowVersions(argparse.Action):
    """Prints our version and those of the runtimes that are installed."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, 0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        for name in ("quatrain", "onnxruntime", "tensorrt-rtx-cu12", "tensorrt"):
            try:
                sys.stdout.write(f"{name} {version(name)}\n")
            except PackageNotFoundError:
                continue
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
