"""Seconds and peak memory of exporting a checkpoint, quatrain's and its peers'.

Each export is a process of its own, from starting Python to its end; they take turns. Nobody
compares what came out with the checkpoint. See README.md in this folder.
"""

import argparse
import os
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks._engines import ENGINES, ROOT
from benchmarks._peer_flags import add_peer_flags, choose_engines, choose_pythons, open_checkpoint
from benchmarks._report import show_spread
from benchmarks._turns import take_turns

# llama.cpp's file is written by _llama_cpp_model.py, so how long that takes says nothing of it.
_OURS = ("llama.cpp",)
EXPORTERS = tuple(n for n, engine in ENGINES.items() if engine.export and n not in _OURS)


def measure(command: list[str]) -> tuple[float, float]:
    """Run a command; return its seconds and the most memory it had resident, in MB.

    Of several processes it is the memory of the largest.
    """
    start = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        if process.returncode:
            log.seek(0)
            raise RuntimeError(f"{command} failed:\n{log.read()[-4000:].decode()}")
    return seconds, usage.ru_maxrss / 1e3


def run(commands: dict[str, list[str]], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Let the exports take turns; `OUT` in a command stands for a folder of its own each time.

    A first round, which has files to read that the others find in memory, does not count.
    """
    return take_turns({name: partial(_export, words) for name, words in commands.items()}, rounds)


def _export(words: list[str]) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "out")
        return measure([word.replace("OUT", out) for word in words])


def to_text(results: dict[str, list[tuple[float, float]]]) -> str:
    """Lay the results out as plain text: a line for each exporter."""
    first = next(iter(results.values()))
    lines = [f"{'':<12}{'seconds':>24}{'times the first one':>28}{'peak memory':>14}"]
    for name, items in results.items():
        seconds = [taken for taken, _ in items]
        ratios = [mine / other for (mine, _), (other, _) in zip(items, first, strict=True)]
        memory = max(peak for _, peak in items)
        lines.append(
            f"{name:<12}{show_spread(seconds):>24}{show_spread(ratios):>28}{memory:>11.0f} MB"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_peer_flags(parser, EXPORTERS, EXPORTERS)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()

    pythons = choose_pythons(arguments)
    checkpoint = open_checkpoint(arguments.checkpoint).resolve()
    commands = {}
    for name in choose_engines(arguments, pythons):
        export = ENGINES[name].export
        assert export is not None
        commands[name] = [pythons[name], *export(checkpoint, Path("OUT"), arguments.precision)]
    print(f"{arguments.precision}, {arguments.rounds} rounds in turns:")
    print(to_text(run(commands, arguments.rounds)))


if __name__ == "__main__":
    main()
