"""A benchmark worker: a process that loads one engine and answers one request per line.

Requests and replies are JSON lines on standard input and output, so the parent decides which
of several loaded engines runs next and only one of them ever computes.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

__all__ = ["Generate", "Generation", "Mark", "Reply", "Worker", "serve"]

_ROOT = Path(__file__).resolve().parents[1]

Mark = Callable[[], None]
"""To be called as soon as the caller of an engine has a token."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What an engine produced; `outside_s` is the time spent outside the model's sessions."""

    prompt_tokens: int
    token_ids: list[int]
    text: str
    outside_s: float | None = None


Generate = Callable[[str, int, Mark], Generation]
"""Generate greedily: a prompt, the number of tokens, what to call for each."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A generation and its times.

    Args:
        first_token_s: From the call to the first token, tokenizing included.
        decode_s: From the first token to the last.
        decode_cpu_s: CPU time of that, all threads together.
    """

    first_token_s: float
    decode_s: float
    decode_cpu_s: float
    generation: Generation


def serve(
    open_engine: Callable[[Path, int], AbstractContextManager[Generate]],
    distributions: Sequence[str],
) -> None:
    """Load the model named on the command line, then answer until standard input closes.

    Args:
        open_engine: Makes a `Generate` of a model's path and a number of threads.
        distributions: The packages whose versions say what was measured.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()

    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not mix with the replies
    with open_engine(arguments.model, arguments.threads) as generate:
        _send(replies, {"versions": {name: version(name) for name in distributions}})
        for line in sys.stdin:
            _send(replies, asdict(_answer(generate, **json.loads(line))))


def _answer(generate: Generate, prompt: str, max_tokens: int) -> Reply:
    marks: list[tuple[float, float]] = []

    def mark() -> None:
        marks.append((time.perf_counter(), time.process_time()))

    start = time.perf_counter()
    generation = generate(prompt, max_tokens, mark)
    if len(marks) != len(generation.token_ids):
        raise RuntimeError(f"{len(marks)} marks for {len(generation.token_ids)} tokens")
    (first, first_cpu), (last, last_cpu) = marks[0], marks[-1]
    return Reply(first - start, last - first, last_cpu - first_cpu, generation)


class Worker:
    """The parent's end of a worker process; `versions` says what it measures."""

    def __init__(self, python: str, module: str, arguments: Sequence[str]) -> None:
        """Start `python -m module arguments` and wait until its engine is loaded."""
        self._process = subprocess.Popen(
            [python, "-m", module, *arguments],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self.versions: dict[str, str] = self._receive()["versions"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def ask(self, prompt: str, max_tokens: int) -> Reply:
        """Have the engine generate greedily and return what it made and how long it took."""
        assert self._process.stdin is not None
        _send(self._process.stdin, {"prompt": prompt, "max_tokens": max_tokens})
        reply = self._receive()
        return Reply(**{**reply, "generation": Generation(**reply["generation"])})

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker {self._process.args!r} ended without an answer")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _send(stream: Any, message: dict[str, Any]) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()
