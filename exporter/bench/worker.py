"""A bundle in a process of its own: it loads once and answers requests, one line of JSON each.

Only so is the peak memory that of one bundle, and only one of several ever computes.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from quatrain.exporter.bench.runner import Opened, Timing
from quatrain.exporter.bench.setting import BenchSetting, Case
from quatrain.runtime.errors import QuatrainError

__all__ = ["Worker"]

_MODULE = "quatrain.exporter.bench.worker_process"


class Worker:
    """The parent's end. Use it as a context manager."""

    def __init__(self, bundle: Path, setting: BenchSetting) -> None:
        self.bundle = bundle
        self._process = subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        try:
            answer = self._ask({"bundle": os.fspath(bundle), "setting": asdict(setting)})
        except BaseException:
            self.close()
            raise
        self.opened = Opened(**answer)

    def time(self, text: str, case: Case) -> Timing:
        """Run a case once over there; raises `QuatrainError` if the process does."""
        return Timing(**self._ask({"text": text, "case": asdict(case)}))

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        asked = f"a benchmark of {self.bundle}"
        try:
            self._process.stdin.write(json.dumps(request, default=os.fspath) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        if not line.endswith("\n"):
            status = self._process.wait()
            raise QuatrainError(
                asked,
                f"its process ended with status {status}",
                "look at what it wrote above; a status of -9 is often a machine out of memory",
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise QuatrainError(*answer["error"])
        return answer
