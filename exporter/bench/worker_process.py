"""The child's end of `Worker`, run as a module: answers until standard input closes."""

import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from quatrain.exporter.bench.runner import Runner
from quatrain.exporter.bench.setting import BenchSetting, Case
from quatrain.runtime.errors import QuatrainError


def main() -> None:
    """Open the bundle that the first line names; time the cases of all others."""
    # Ctrl-C reaches the whole group; the parent says so, and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not mix with the replies
    runner: Runner | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if runner is None:
                runner = Runner(Path(request["bundle"]), _read_setting(request["setting"]))
                _send(replies, asdict(runner.opened))
            else:
                timing = runner.time(request["text"], Case(**request["case"]))
                _send(replies, asdict(timing))
        except QuatrainError as error:
            _send(replies, {"error": [error.asked, error.found, error.fix]})


def _read_setting(fields: dict[str, Any]) -> BenchSetting:
    folder = fields["session_cache"]
    return BenchSetting(
        **fields
        | {
            "prompt_tokens": tuple(fields["prompt_tokens"]),
            "session_cache": None if folder is None else Path(folder),
        }
    )


def _send(stream: TextIO, message: Mapping[str, Any]) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()


if __name__ == "__main__":
    main()
