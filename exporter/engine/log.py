"""What TensorRT says while it parses and builds, kept instead of printed."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TextIO

from quatrain.exporter.errors import BuildError

__all__ = [
    "NO_DRIVER",
    "BuildLog",
    "Explanation",
    "explain_failure",
    "find_unused_inputs",
    "lacks_attention_kernel",
]

Severity = Literal["error", "warning", "info"]

_UNUSED_INPUT = re.compile(r"^Unused Input: (.+)$")
_ALLOCATION = re.compile(
    r"out ?of ?memory|bad_alloc|insufficient memory|memoryallocation|failed to allocate"
    r"|allocation (of .*)?failed|requested amount of .*memory",
    re.IGNORECASE,
)
_NO_ATTENTION_KERNEL = "Attention operation was not supported by a dedicated kernel"
_NO_IMPLEMENTATION = "Could not find any implementation for node"
# Every failure on a machine without a GPU ends with this one; it says nothing of the cause.
NO_DRIVER = "cudaError 35"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a build failed and what to do about it."""

    found: str
    fix: str


class BuildLog:
    """Collects errors and warnings; every line from information up also goes to `file`."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self._file: TextIO | None = None
        self._lock = threading.Lock()

    def add(self, severity: Severity, text: str) -> None:
        """Take one message; TensorRT calls from any thread."""
        with self._lock:
            if severity == "error":
                self.errors.append(text)
            elif severity == "warning":
                self.warnings.append(text)
            if self._file is not None:
                self._file.write(f"[{severity}] {text}\n")

    def clear(self) -> None:
        """Forget what was collected, before the next graph."""
        with self._lock:
            self.errors.clear()
            self.warnings.clear()

    @contextmanager
    def record_to(self, path: Path | None) -> Iterator[None]:
        """Append every line to the file at `path`, too, while the block runs."""
        if path is None:
            yield
            return
        try:
            file = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise BuildError(f"log to {path}", str(error), "choose another log_file") from error
        with file:
            self._file = file
            try:
                yield
            finally:
                self._file = None


def find_unused_inputs(warnings: list[str]) -> list[str]:
    """The graph inputs TensorRT warned that nothing uses."""
    matches = (_UNUSED_INPUT.match(line) for line in warnings)
    return [match[1] for match in matches if match]


def lacks_attention_kernel(log: BuildLog) -> bool:
    """Whether a build failed for want of a fused attention kernel (float32; too few heads)."""
    return any(_NO_ATTENTION_KERNEL in line for line in log.errors)


def explain_failure(log: BuildLog) -> Explanation:
    """The cause of a failed build: what ran out, rather than the node it ran out at."""
    last = [line for line in log.errors if NO_DRIVER not in line][-1:]
    summary = _shorten(last[0]) if last else "TensorRT gave no reason"
    shortage = next(
        (line for line in (*log.warnings, *log.errors) if _ALLOCATION.search(line)), None
    )
    if shortage is not None:
        found = f"out of memory: {_shorten(shortage)}"
        if _NO_IMPLEMENTATION in summary:
            found += f" (which TensorRT goes on to report as: {summary})"
        return Explanation(
            found,
            "free memory, or export again with a smaller max_seq_len, max_batch or prefill_chunk",
        )
    return Explanation(
        summary,
        "keep the whole log (`quatrain build BUNDLE --target T --log-file FILE`) and report it; "
        "the ONNX graph named is the input",
    )


def _shorten(text: str, limit: int = 600) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
