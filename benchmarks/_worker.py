"""A benchmark worker: a process that loads one engine and answers one request per line.

Requests and replies are JSON lines on standard input and output, so the parent decides which
of several loaded engines runs next and only one of them ever computes.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

__all__ = ["Generation", "Reply", "Worker", "serve"]

_ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Generation:
    """What an engine produced; `session_s` is the time spent inside the model sessions."""

    prompt_tokens: int
    token_ids: list[int]
    text: str
    session_s: float | None = None
    stats: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """A generation, and the wall and CPU time of the whole call, tokenizing included."""

    wall_s: float
    cpu_s: float
    generation: Generation


def serve(generate: Callable[[str, int], Generation]) -> None:
    """Answer the parent's requests until standard input closes."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not mix with the replies
    _send(replies, {"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        start, cpu_start = time.perf_counter(), time.process_time()
        generation = generate(request["prompt"], request["max_tokens"])
        reply = Reply(time.perf_counter() - start, time.process_time() - cpu_start, generation)
        _send(replies, asdict(reply))


class Worker:
    """The parent's end of a worker process."""

    def __init__(self, module: str, arguments: Sequence[str]) -> None:
        """Start `python -m module arguments` and wait until its engine is loaded."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._receive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def ask(self, prompt: str, max_tokens: int) -> Reply:
        """Have the engine generate greedily and return what it made and how long it took."""
        assert self._process.stdin is not None
        _send(self._process.stdin, {"prompt": prompt, "max_tokens": max_tokens})
        reply = self._receive()
        return Reply(reply["wall_s"], reply["cpu_s"], Generation(**reply["generation"]))

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker {self._process.args!r} ended without an answer")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _send(stream: Any, message: dict[str, Any]) -> None:
    stream.write(json.dumps(message, default=str) + "\n")
    stream.flush()
