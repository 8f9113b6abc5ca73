"""Flags that the benchmarks against peers share, and what follows from them."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks._engines import ENGINES, ROOT, export_model, find_obstacle

__all__ = [
    "BUILD",
    "add_peer_flags",
    "choose_engines",
    "choose_pythons",
    "open_checkpoint",
    "prepare_models",
]

BUILD = ROOT / "build" / "smollm2"


def add_peer_flags(
    parser: argparse.ArgumentParser, engines: Sequence[str], default: Sequence[str]
) -> None:
    """Add what says which engines take part, and with which files."""
    parser.add_argument("--checkpoint", type=Path, default=BUILD / "checkpoint")
    parser.add_argument("--precision", choices=("fp32", "int4"), default="fp32")
    parser.add_argument(
        "--engines", nargs="+", choices=engines, default=default, help="ratios are of the first"
    )
    parser.add_argument(
        "--python",
        type=_split_pair,
        action="append",
        default=[],
        metavar="ENGINE=PATH",
        help="the Python that has an engine (default: this one)",
    )
    parser.add_argument(
        "--model",
        type=_split_pair,
        action="append",
        default=[],
        metavar="ENGINE=PATH",
        help="what an engine exported before (default: in build/, exported if need be)",
    )


def _split_pair(text: str) -> tuple[str, str]:
    name, sign, path = text.partition("=")
    if name not in ENGINES or not sign or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not ENGINE=PATH with one of {[*ENGINES]}")
    return name, path


def choose_pythons(arguments: argparse.Namespace) -> dict[str, str]:
    """The interpreter of every engine."""
    return dict.fromkeys(ENGINES, sys.executable) | dict(arguments.python)


def choose_engines(arguments: argparse.Namespace, pythons: Mapping[str, str]) -> list[str]:
    """The engines asked for that can take part; says why the others cannot."""
    able = []
    for name in dict.fromkeys(arguments.engines):
        obstacle = find_obstacle(ENGINES[name], pythons[name], arguments.precision)
        if obstacle is None:
            able.append(name)
        else:
            print(f"{name} is left out: {obstacle}")
    if not able:
        raise SystemExit("no engine is left")
    return able


def open_checkpoint(folder: Path) -> Path:
    """The checkpoint to compare on; SmolLM2-135M-Instruct is written where there is none."""
    if (folder / "config.json").is_file():
        return folder
    from samples.smollm2 import convert_smollm2

    return convert_smollm2(folder)


def prepare_models(
    engines: Sequence[str],
    pythons: Mapping[str, str],
    checkpoint: Path,
    arguments: argparse.Namespace,
) -> dict[str, Path]:
    """Where each engine's model lies, exported if it was not yet."""
    given = {name: Path(path) for name, path in arguments.model}
    models = {}
    for name in engines:
        out = given.get(name, BUILD / f"{name}-{arguments.precision}")
        models[name] = export_model(
            ENGINES[name], pythons[name], checkpoint, out, arguments.precision
        )
    return models
