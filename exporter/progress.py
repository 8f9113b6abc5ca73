"""Progress of long work: each stage with its seconds, bytes and the peak memory so far."""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Progress", "Stage", "peak_rss_bytes"]


@dataclass(slots=True)
class Stage:
    """One finished or running stage; `bytes` is what it wrote or read, where that matters."""

    name: str
    seconds: float = 0.0
    bytes: int | None = None
    peak_rss_bytes: int = 0


class Progress:
    """Collects stages and tells `report` of each as a line of text (default: nobody)."""

    def __init__(self, report: Callable[[str], None] | None = None) -> None:
        self.stages: list[Stage] = []
        self._report = report or (lambda line: None)

    @contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        """Time a stage; it counts only when it ends without an error."""
        stage = Stage(name)
        self.say(f"{name} ...")
        start = time.perf_counter()
        yield stage
        stage.seconds = time.perf_counter() - start
        stage.peak_rss_bytes = peak_rss_bytes()
        self.stages.append(stage)
        size = "" if stage.bytes is None else f"  {stage.bytes / 1e6:,.1f} MB"
        self.say(
            f"{name}: {stage.seconds:.2f} s{size}  peak memory {stage.peak_rss_bytes / 1e6:,.0f} MB"
        )

    def say(self, line: str) -> None:
        """Report one line."""
        self._report(line)


def peak_rss_bytes() -> int:
    """The largest resident size this process has had."""
    # Of a new process the kernel's account (getrusage) starts with the peak of the one that started
    # it; the high-water mark of its own memory does not.
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
